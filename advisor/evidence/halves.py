"""What 16 bits would leave of work in float32: with autocast, or with weights in 16 bits themselves."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.gpu.matrix import format_of, is_optimizer
from advisor.evidence.gpu.products import left_of_products, reading_weights
from advisor.evidence.gpu.replay import LAUNCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from advisor.evidence import Evidence
    from advisor.evidence.facts import KernelRow

# A kernel's time in 16 bits over its time now, where the device's peaks are not known (gpu/products.py). Matrix work
# off the Tensor Cores: their peak is 8 to 16 times float32's (V100 125 to 15.7, A100 312 to 19.5 TFLOP/s, data sheets),
# memory holds most products to about a third. On them already it is TF32, at half the 16-bit rate (A100 156 to 312
# TFLOP/s), or float32 on AMD's matrix cores, at a quarter (MI250 45.3 to 181 a die). Other kernels move half the bytes,
# but normalization stays in float32.
_SCALE = {"off": 0.35, "unknown": 0.7, "on": 0.65, "": 0.85}
# Not batch norm: in networks of convolutions all between these is in 16 bits, and moves half the bytes. ResNet-50 on an
# A100 becomes 2.6 times as fast as with TF32, the order of channels changed with it (NVIDIA/DeepLearningExamples,
# ResNet50 v1.5).
_BETWEEN_CONVOLUTIONS = re.compile(
    r"batch_norm|relu|clamp|threshold|hardtanh|hardswish|silu|gelu|pool|dropout|^aten::(add|mul|cat)_?$"
)
_BETWEEN_SCALE, _CONVOLUTIONAL = 0.55, 0.5
# Autocast casts a product's inputs, and its backward their gradients, each with an operator and a launch of its own:
# two of them for a product, at the 5 us or more that eager PyTorch takes for each. On an H200 a model that waits for
# its launches takes 222 ms with it, and 181 without (sgl-project/sglang-omni, issue 1652).
_CASTS_S = 10e-6
# Attention in float32 on NVIDIA's Tensor Cores makes each product of three in TF32. The same kernels in float16 take
# 0.23 to 0.33 of the time on an A100, 256 to 8192 tokens (facebookresearch/xformers, pull request 587); flash
# attention, which 16 bits allow for, takes less.
_ATTENTION_SCALE = 0.3
_LEAST_SHARE = 0.05  # of kernel time
# Products of sparse matrices on a CPU, by their operators, and by how a script makes the matrices: those in CSR call
# the operators of dense ones.
# A product with a matrix in CSR asks it for its rows, which nothing else does.
_SPARSE = re.compile(r"sparse_(coo|csr|csc|mm|addmm|mv|matmul)|_to_sparse|spmm|crow_indices")
_MADE_SPARSE = re.compile(r"\bsparse_(coo|csr|csc|bsr|bsc|compressed)_tensor\b|\.to_sparse|\btorch\.sparse\.")
# Compute capability 7.5 without Tensor Cores: TU116 and TU117, as GeForce, as professional cards, and in laptops
# (NVIDIA, "CUDA GPUs", and their product pages).
_NO_TENSOR_CORES = re.compile(r"GTX 16\d\d|\bT\d{3,4}\b|MX[45]50")
# Bytes that move for each weight and step: read in float32 and written in 16 bits; in training its gradient comes back.
_CAST_BYTES, _CAST_GRADIENT_BYTES = 6, 6
# What a GradScaler does in each step (torch/amp/grad_scaler.py, 2.6 to 2.15): it reads and writes every gradient in
# float32; on the host it goes over the gradients in Python (0.5 us each, measured on a CPU) and calls a dozen small
# operators, at the 5 to 50 us each that eager PyTorch takes.
_UNSCALE_BYTES = 8
_SCALER_S, _SCALER_TENSOR_S = 150e-6, 0.5e-6
# Bytes a second of GPUs that the table of peaks does not have, parts of one and laptops' among them: those with Tensor
# Cores have 190 (an eighth of an A100, a GeForce RTX 3050 of a laptop) to 900e9 (product pages).
_BANDWIDTH = 400e9
# What is left of the time of linear layers on AMD's processors with instructions for bfloat16, where the run did not
# measure their rate: set on one, with autocast, on which two MLPs of width 1024 were 2.2 and 2.3 times as fast, where
# 1.4 was predicted with 0.45, rows of a table through 128 units 1.8 for 1.24; with weights in 16 bits a scoring that is
# nine tenths linear layers 4.2 (0.16).
_AMD_LINEAR_SCALE, _LINEAR = 0.20, ("aten::addmm", "aten::mm")
# With autocast, of a linear layer's forward and backward, casts included, beyond what is left of large products: 1.7 at
# 2 MFLOP a product, 1.24 at 8, 0.9 at 25, 0.6 at 100, 0.51 to 0.56 at 270, 0.44 to 0.53 from 500 on, where large ones
# take 0.47 (256 to 6144 rows, widths of 64 to 1024; torch 2.15, two cores of an EPYC with AVX512_BF16).
_CAST_LEFT, _CAST_POWER, _CAST_MOST, _CAST_ROWS = 3.1, 0.66, 2.0, 256
_TWO_MATRICES = re.compile(r"\[(\d+),(\d+)\],\[(\d+),(\d+)\]")
# Products whose time in 16 bits is measured to be at least this much of float32's get no faster: what is fitted to
# processors on which they do does not hold, the measured ratio does.
_NO_FASTER = 0.8


@dataclass(frozen=True)
class Single:
    """Matrix work in float32, in TF32 too. Shares are of kernel time, ``off`` what is off the matrix cores."""

    share: float
    off: float
    per_step_s: float
    amd: bool

    @property
    def summary(self) -> str:
        """A sentence: how much it is, and on which units."""
        cores, form = ("matrix cores", "") if self.amd else ("Tensor Cores", " as TF32")
        text, off = f"{self.share:.0%} of the kernels' time is float32 matrix work", self.off / self.share
        if off > 0.99:
            return f"{text} off the {cores}."
        if off < 0.01:
            return f"{text} on the {cores}{form}, which multiply 16 bits faster still."
        return f"{text}, {off:.0%} of that off the {cores}."


def multiplies_sparse(operators: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether a CPU multiplies sparse matrices, by the names of its operators and the texts of the script's files.

    That has no kernels in bfloat16 that were faster, or none at all (CSR), and counts as many FLOPs as dense products.
    """
    return any(map(_SPARSE.search, operators)) or any(map(_MADE_SPARSE.search, texts))


def single_precision(evidence: Evidence) -> Single | None:
    """The matrix work that a GPU with units for 16 bits does in float32; None where there is too little of it.

    In a bare trace None also where most is in 16 bits: autocast is on then, and the rest is meant to be float32.
    """
    capability, recorded = evidence.capability, evidence.record is not None
    if capability is not None and (capability < (7, 0) or _NO_TENSOR_CORES.search(evidence.device_name)):
        return None  # no Tensor Cores
    if capability is None and (recorded or evidence.amd) and not (evidence.amd and (recorded or evidence.peak)):
        return None  # unknown, or one of AMD's without matrix cores
    rows = [row for row in evidence.kernels if row.matrix in ("on", "off")]
    single = [row for row in rows if format_of(row.name) in ("float32", "tf32")]
    share = sum(row.share for row in single)
    narrow = sum(row.share for row in rows if row.matrix == "on" and format_of(row.name) == "narrow")
    if share < _LEAST_SHARE or (not recorded and narrow > share):
        return None
    off = sum(row.share for row in single if row.matrix == "off")
    return Single(share, off, sum(row.per_step_s for row in single), evidence.amd)


def casting_s(evidence: Evidence) -> float:
    """Device seconds per step that autocast takes to cast the weights, and in training their gradients back.

    The bytes that this moves over the data sheet's bandwidth; 0 where the weights are not known.
    """
    return _moving_s(evidence, _CAST_BYTES + (_CAST_GRADIENT_BYTES if evidence.trains else 0))


def scaling_s(evidence: Evidence) -> tuple[float, float]:
    """(device, host) seconds per step that a ``GradScaler`` adds to a training.

    It unscales the gradients, and reads whether one of them is infinite before the optimizer steps: the host loses its
    lead there, and the device waits for the optimizer's launches. Fused optimizers are not waited for.
    """
    stepping = [each for each in evidence.record.optimizers if each.steps] if evidence.record is not None else []
    tensors = sum(each.parameters for each in stepping)
    reads = not stepping or not all(each.fused for each in stepping)
    device_s = _moving_s(evidence, _UNSCALE_BYTES) + (_lead_of_optimizer_s(evidence) if reads else 0.0)
    return device_s, _SCALER_S + tensors * _SCALER_TENSOR_S


def _moving_s(evidence: Evidence, bytes_each: int) -> float:
    """Device seconds to move so many bytes for each weight; 0 where the weights are not known."""
    if evidence.record is None:
        return 0.0
    weights = sum(model.parameters for model in evidence.record.models if model.calls)
    return weights * bytes_each / (evidence.peak.bandwidth if evidence.peak is not None else _BANDWIDTH)


def _lead_of_optimizer_s(evidence: Evidence) -> float:
    """Seconds per step that the device would idle beyond what it does now, were the optimizer launched after a sync.

    That is what launching the optimizer takes the host beyond the work that is launched: now earlier work hides it.
    """
    script, optimizer, device = evidence.step_model.script, evidence.host.optimizer, evidence.device
    if script is None or not len(optimizer):
        return 0.0
    bare = evidence.undisturbed_model  # of a trace without a record: as the profiler's part of the host's time is known
    undisturbed = (bare.host_scale if bare is not None else None) or 1.0 / evidence.inflation
    begin, launch = evidence.trace.runtime.start, device.items_launch
    launching = (np.array(script.kind) == LAUNCH) & optimizer.contains(begin[script.row])
    host_s = float((script.gap + script.length)[launching].sum()) / 1e9 / script.steps * undisturbed
    own = (launch >= 0) & optimizer.contains(begin[launch])
    own_ns = int((device.items_end - device.items_start)[own].sum())
    idle_ns = optimizer.minus(device.busy).total
    return max(0.0, host_s - (own_ns + idle_ns) / 1e9 / len(evidence.steps))


def in_16_bits(evidence: Evidence, single: Single, casting_s: float = 0.0) -> dict[str, float]:
    """Kernel name → its time in 16 bits over its time now; the products are charged with `casting_s` more per step."""
    recorded = evidence.record is not None
    between = recorded and _mostly_convolutions(evidence)
    least = reading_weights(evidence, single.per_step_s, 2)

    def factor(row: KernelRow) -> float:
        form = format_of(row.name)
        if row.kind == "communication" or is_optimizer(row.name):  # parameters and moments stay float32
            return 1.0
        if form in ("wide", "narrow" if row.matrix != "unknown" else ""):
            return 1.0
        if row.matrix in ("on", "off"):
            pieces = row.kind == "attention" and form == "float32" and row.matrix == "on" and not evidence.amd
            return (_ATTENTION_SCALE if pieces else _of_products(evidence, row, least)) + casting_s / single.per_step_s
        if between and _BETWEEN_CONVOLUTIONS.search(row.operator):
            return _BETWEEN_SCALE
        return _SCALE.get(row.matrix, 1.0) if recorded or row.matrix != "unknown" else 1.0

    return {row.name: factor(row) for row in evidence.kernels}


def _of_products(evidence: Evidence, row: KernelRow, least: float) -> float:
    now, then = "tf32" if row.matrix == "on" else "float32", "bfloat16" if has_bf16(evidence) else "float16"
    left = None if evidence.amd else left_of_products(evidence, row, now, then, least)
    return _SCALE[row.matrix] if left is None else left


def _mostly_convolutions(evidence: Evidence) -> bool:
    rows = [row for row in evidence.kernels if row.matrix]
    return sum(row.share for row in rows if row.kind == "conv") > _CONVOLUTIONAL * sum(row.share for row in rows)


def casts_on_host_s(evidence: Evidence) -> float:
    """Host seconds per step that autocast takes for its casts; 0 where a compiler makes them."""
    if evidence.compiled:
        return 0.0
    products = sum(row.count for row in evidence.kernels if row.matrix and format_of(row.name) in ("float32", "tf32"))
    return products * _CASTS_S / max(1, len(evidence.steps))


def rate_on_cpu(evidence: Evidence, operator: str, dtype: str = "bfloat16") -> float | None:
    """Seconds of a matrix operator in 16 bits over its seconds in float32 as this run's processor was measured.

    None where the run did not measure it: older ones, and those on a GPU.
    """
    rates = evidence.record.environment.rates.get(dtype, {}) if evidence.record is not None else {}
    return rates.get("convolution" if "conv" in operator else "product")


def no_faster(evidence: Evidence, scales: dict[str, float]) -> dict[str, float]:
    """`scales`, what is left of each matrix operator's time in bfloat16, as was measured where that gains nothing."""
    rates = {name: rate_on_cpu(evidence, name) or 0.0 for name in scales}
    slow = {name for name, left in scales.items() if left < 1 and rates[name] >= _NO_FASTER}
    return {name: max(left, rates[name]) if name in slow else left for name, left in scales.items()}


def linear_on_cpu(evidence: Evidence, scale: float) -> dict[str, float]:
    """Operator of linear layers → what is left of its time in bfloat16, where that is less than the usual `scale`.

    On AMD's processors, as fast as the run has measured them.
    """
    if not is_amd(evidence):
        return {}
    return dict.fromkeys(_LINEAR, min(scale, rate_on_cpu(evidence, _LINEAR[0]) or _AMD_LINEAR_SCALE))


def linear_with_casts(evidence: Evidence) -> dict[str, float]:
    """Operator of linear layers → what autocast leaves of its time, casts included; nothing where no rate is measured.

    By the sizes of the products that were seen most often, each by its work.
    """
    rate = rate_on_cpu(evidence, _LINEAR[0])
    if rate is None or not is_amd(evidence):
        return {}
    left = {}
    for name in _LINEAR:
        work = [2.0 * math.prod(each) for each in _products(evidence, name)]
        if work:
            spent = [each * min(_CAST_MOST, rate + _CAST_LEFT * (each / 1e6) ** -_CAST_POWER) for each in work]
            left[name] = sum(spent) / sum(work)
    return left


def few_rows(evidence: Evidence) -> float:
    """From 0, where the largest product of linear layers has as many rows as those that :func:`linear_with_casts` was
    measured on, to 1 where it has none: how much the casts of their weights come on top of that.
    """
    largest = max((each for name in _LINEAR for each in _products(evidence, name)), key=math.prod, default=(0,))
    return max(0.0, 1.0 - min(largest) / _CAST_ROWS)


def _products(evidence: Evidence, name: str) -> list[tuple[int, int, int]]:
    """Rows, columns and what is summed over, of an operator's most frequent products; an addmm's bias is left out."""
    row = evidence.operators.row(name)
    found = [_TWO_MATRICES.search(shape) for shape in (row.shapes if row is not None else ())]
    return [(int(each[1]), int(each[4]), int(each[2])) for each in found if each is not None and each[2] == each[3]]


def is_amd(evidence: Evidence) -> bool:
    """Whether the run's processor is one of AMD's."""
    return evidence.record is not None and evidence.record.environment.cpu.startswith("AMD")


def has_bf16(evidence: Evidence) -> bool:
    """Whether the GPU multiplies bfloat16 itself: NVIDIA's do since Ampere, AMD's since MI200."""
    if evidence.record is not None:
        return evidence.record.device.bf16
    return evidence.amd or evidence.capability is None or evidence.capability >= (8, 0)
