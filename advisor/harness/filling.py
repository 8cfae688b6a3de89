"""Samples of different lengths among what a model is called with, other than texts: what fills the shorter ones up.

Recordings, spectrograms, series of measurements, pictures of lines: tensors whose batches are each as long as their
longest sample, in which the shorter ones end in slices of one number.
"""

from __future__ import annotations

from typing import Any

from .looking import may_compute

_LEAST_LENGTH = 16
_LEAST_RUN = 2  # slices: the last one of every sample is alike to itself
_MOST_VALUES = 1 << 26  # of a tensor that is asked: some hundredths of a second


def features(torch: Any, tensors: list[Any]) -> Any:
    """The largest of a call's tensors, if that is one of features: floating, or bytes; else None."""
    plain = [each for each in tensors if may_compute(torch, each) and each.numel()]
    largest = max(plain, key=lambda each: int(each.numel()), default=None)
    if largest is None or largest.dim() < 2 or largest.shape[0] < 2 or largest.numel() > _MOST_VALUES:
        return None
    return largest if largest.is_floating_point() or largest.dtype == torch.uint8 else None


def lengthwise(shape: tuple[int, ...], before: tuple[int, ...]) -> int:
    """The one dimension beside the first that is of another length than in the call before; 0 where none is.

    As long as the first in both it is the other side of a matrix: a batch of graphs as blocks of its adjacency, in
    which each row is zeros but for its own block.
    """
    if len(shape) != len(before):
        return 0
    other = [at for at in range(1, len(shape)) if shape[at] != before[at]]
    if len(other) == 1 and (shape[0], before[0]) == (shape[other[0]], before[other[0]]):
        return 0
    return other[0] if len(other) == 1 and min(shape[other[0]], before[other[0]]) >= _LEAST_LENGTH else 0


def filled(torch: Any, tensor: Any, dimension: int) -> Any:
    """The share of `tensor` that fills its samples up along `dimension`, at their ends; a tensor on its device.

    What fills is the slice with which the sample ends that ends in the longest run of one slice: 0, or 255, or what a
    normalization has made of it.
    """
    with torch.inference_mode():
        slices = tensor.transpose(1, dimension).flatten(2) if tensor.dim() > 2 else tensor.unsqueeze(2)
        last = slices[:, -1:]
        runs = (slices == last).all(2).flip(1).to(torch.int32).cumprod(1).sum(1)
        fill = last[runs.argmax()]
        ends = (last[:, 0] == fill).all(1) & (runs >= _LEAST_RUN)
        return torch.where(ends, runs, 0).sum() / (slices.shape[0] * slices.shape[1])
