"""How a step grows with its batch: what is paid per step stays, what is paid per sample grows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.matrix import MATRIX_KINDS, kind_of

if TYPE_CHECKING:
    from advisor.harness.layout import Model

# Of every kernel this much is start and end, whatever its size (empty kernels take 1.5-2.5 µs in the reference traces).
KERNEL_FIXED_NS = 2_000
# A multiprocessor holds 2048 threads (1536 on consumer cards) and at most 32 blocks (CUDA C++ programming guide,
# "Compute Capabilities"); gemm, convolution and attention kernels use its whole shared memory for one block.
THREADS_PER_UNIT = 2048
BLOCKS_PER_UNIT = 32
UNITS = 108  # where the device does not say: an A100
# Host seconds of a CPU operator that do not depend on its size: dispatch, allocation, autograd. Operators that only
# wrap another one count as well (small CPU steps show 1-3 µs of self time for views and wrappers, profiler included).
OPERATOR_FIXED_S = 2e-6
# The same where the batch grows, of which the multiplying operators' setting up is a part, too: with it seven tiny nets
# are predicted to gain 3.1 to 7.0 times from eight times the batch, and gained 3.5 to 7.3.
BATCH_FIXED_S = 3.5e-6
# What oneDNN's convolutions take besides, to find their primitive and to reorder weights and inputs. Fitted to times of
# 2, 4, 8, 16 and 32 samples, torch 2.15, two quiet cores: of thirteen kinds (one and two dimensions, depthwise, 1x1,
# transposed, NHWC) eleven came to 38 to 73 us forward and 115 to 154 backward, the one with most weights to more.
CONVOLUTION_FIXED_S = {"aten::mkldnn_convolution": 45e-6, "aten::convolution_backward": 100e-6}
MOST_CONVOLUTION_FIXED = 0.9  # of its time: a faster processor's is less
# Seconds per weight and step on a CPU, whatever the batch: reading it twice, writing its gradient into fresh memory.
# Fitted to steps of two batch sizes each, torch 2.15, two quiet cores: MLPs of 2 and 8 million weights 1.0 to 1.9 ns, a
# transformer encoder 1.8 to 2.3, ResNet-18 1.9 to 3.8, ResNet-50 2.6 to 2.8.
WEIGHT_TRAINED_S = 1.9e-9
WEIGHT_READ_S = 0.6e-9  # a third: forward only
# FLOP per second and thread that a processor does at most in what a batch multiplies, by its widest instructions: a
# sentence encoder's batches of 32, on two cores with AVX-512, came to 62 (the units of two such cores could do twice to
# three times as many); half as many lanes with AVX2.
FLOP_PER_S = {"avx512f": 70e9, "avx2": 45e9}
LEAST_FLOP_PER_S = 30e9

# Seconds of making a batch, whatever its size: rows of tensors took 32 to 54 us for batches of 2 to 8 beside training,
# two cores (other work has taken the caches meanwhile), and 1.5 to 1.8 us a sample from one batch size to the next.
FETCH_FIXED_S = 25e-6


def flop_per_s(flags: Collection[str]) -> float:
    """FLOP per second and thread of a processor with such instructions."""
    return next((rate for flag, rate in FLOP_PER_S.items() if flag in flags), LEAST_FLOP_PER_S)


def weights_s(models: Sequence[Model], trains: bool) -> float:
    """Seconds per step on a CPU for the weights of these, however many samples there are; `trains`: with a backward.

    Of frozen ones nobody writes a gradient.
    """
    frozen = sum(model.frozen if trains else model.parameters for model in models)
    return (sum(model.parameters for model in models) - frozen) * WEIGHT_TRAINED_S + frozen * WEIGHT_READ_S


def larger_fetch_s(seconds: float, factor: float) -> float:
    """Seconds to make a batch that has `factor` times as many samples as one that takes `seconds`."""
    fixed = min(FETCH_FIXED_S, 0.75 * seconds)
    return fixed + (seconds - fixed) * factor


def item_factors(device: DeviceWork, factor: float, units: int | None, *, filling: bool) -> NDArray[np.float64]:
    """Factor on the duration of each item (kernels, then copies) for a batch `factor` times as large.

    With `filling` a kernel that leaves multiprocessors empty grows into them for nothing, and none shrinks below one
    that does; without, all grow in proportion. The optimizer's kernels and collectives do not see the batch.
    """
    trace = device.trace
    kernels, copies = trace.kernels, trace.copies
    duration = (kernels.end - kernels.start).astype(np.float64)
    growth = np.full(len(kernels), factor)
    if filling:
        per_unit = np.clip(THREADS_PER_UNIT // np.maximum(kernels.block, 1), 1, BLOCKS_PER_UNIT)
        matrix = names_like(trace, kernels.name, lambda name: kind_of(name) in MATRIX_KINDS)
        full = (units or UNITS) * np.where(matrix, 1, per_unit)
        # Rounds in which the multiprocessors take all blocks; less than one leaves some of them empty.
        waves = np.where(kernels.grid > 0, kernels.grid / full, max(1.0, 1.0 / factor))
        growth = np.maximum(1.0, factor * waves) / np.maximum(1.0, waves)
    fixed = np.minimum(duration, KERNEL_FIXED_NS)
    scaled = np.where(duration > 0, (fixed + (duration - fixed) * growth) / np.maximum(duration, 1), 1.0)
    launch = device.items_launch[: len(kernels)]
    moment = np.where(launch >= 0, trace.runtime.start[launch] if len(trace.runtime) else 0, kernels.start)
    scaled[device.host.optimizer.contains(moment) | device.communication] = 1.0
    return np.concatenate((scaled, np.full(len(copies), factor)))
