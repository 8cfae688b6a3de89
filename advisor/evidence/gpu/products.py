"""What is left of a GPU's matrix products in a narrower format, by its maker's peaks and by how long they take now.

Set on products of square matrices that owners of sixteen GPUs measured with one script (zzc0721/torch-performance-test-
data, issues 64 to 200, torch 2.7 to 2.11). Of float32's time TF32 and 16 bits left, at 2048 and at 4096: H100 0.15 and
0.13, 0.07 and 0.07; A100 0.11 and 0.14, 0.07 and 0.07; V100 16 bits 0.16 and 0.14; A40 0.49 and 0.42, 0.22 and 0.20;
RTX 4090 0.78 and 0.63, 0.33 and 0.35; A10G 0.89 and 0.76, 0.36 and 0.37. Of TF32's time 16 bits left 0.45 to 0.55.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import KernelRow

# Times the ratio of the peaks. These count float32 on units that do integers as well in some GPUs (compute capability
# 8.6, 8.9, 12.x), of which products reach some two thirds: there is less to gain.
_OF_PEAKS, _OF_SHARED_PEAKS = 1.1, 0.75
_SHARED = ((8, 6), (8, 9), (12, 0), (12, 1))
# What a kernel takes however fast it multiplies: 1024 x 1024 products took up to 16 us more than their share of it.
_FIXED_S = 7e-6
# The most that reading weights is taken to leave: embeddings are among the weights, and no product reads them whole.
_READING = 0.5


def left_of_products(evidence: Evidence, row: KernelRow, now: str, then: str, least: float = 0.0) -> float | None:
    """A kernel's time with its products in format `then` over its time `now` (names of ``Peak.flops``).

    `least` is what reading the weights leaves of it. None where the device's peaks are not known, or it does not have
    the format.
    """
    peak = evidence.peak
    before, after = (peak.of(each) if peak is not None else None for each in (now, then))
    if not before or not after:
        return None
    shared = now == "float32" and shares_units(evidence)
    each_s = row.total_s / max(1, row.count)
    of_peaks = 1.0 if now == "tf32" else _OF_SHARED_PEAKS if shared else _OF_PEAKS
    return min(1.0, max(least, of_peaks * before / after) + (_FIXED_S / each_s if each_s else 1.0))


def reading_weights(evidence: Evidence, seconds: float, size: int) -> float:
    """What reading weights of `size` bytes each leaves of `seconds` per step in products, however fast they are.

    Once in an inference; in training the backward reads them again, and writes as many gradients. Half at the most.
    """
    if evidence.record is None or evidence.peak is None or not seconds:
        return 0.0
    there = [model for model in evidence.record.models if any(not each.startswith("cpu") for each in model.devices)]
    weights = sum(model.parameters for model in there if model.calls)
    passes = 3 if evidence.trains else 1
    return min(_READING, passes * weights * size / evidence.peak.bandwidth / seconds)


def shares_units(evidence: Evidence) -> bool:
    """Whether the device's float32 units are counted twice in what its maker says, as those of GeForce are."""
    return evidence.capability in _SHARED
