"""Whether what a model is given are a batch's numbers on another scale: pixels over 255, columns less their means."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

_LEAST_NUMBERS = 8  # of each channel: any two of them lie on a line
_MOST_CHANNELS = 1024
_TRIED = 256  # numbers of each channel that are compared before all are
_EXACT = 1e-4  # of the span of what was given: float32 is a thousand times finer
_PERMUTED = (0, 3, 1, 2)  # height, width, channels → channels first


def scaling(torch: ModuleType, delivered: Any, given: Any) -> tuple[Any, ...] | None:
    """How `given` was made of `delivered`: its layout, and a factor and an offset for each channel; None where not so.

    The channel is the second dimension of `given`. Figures are rounded, so that those of other batches compare equal
    where the scale is the same; one by a batch's own mean is another one in each.
    """
    if not (given.dim() > 1 and delivered.dim() and given.is_floating_point()):
        return None
    if not delivered.shape[0] or given.shape[0] % delivered.shape[0]:
        return None
    channels = int(given.shape[1])
    if not 0 < channels <= _MOST_CHANNELS or given.numel() < _LEAST_NUMBERS * channels:
        return None
    with torch.no_grad():
        results = _by_channel(given)
        for layout, numbers in _layouts(delivered, given):
            found = _line(torch, _by_channel(numbers), results)
            if found is not None:
                return layout, *found
    return None


def _layouts(delivered: Any, given: Any) -> Iterator[tuple[str, Any]]:
    if delivered.is_complex() or delivered.numel() != given.numel():
        return
    yield "as it was", delivered.reshape(given.shape)
    if delivered.dim() == len(_PERMUTED) and delivered.permute(_PERMUTED).shape == given.shape:
        yield "permuted", delivered.permute(_PERMUTED)


def _by_channel(tensor: Any) -> Any:
    """(channels, numbers of each)."""
    return tensor.transpose(0, 1).flatten(1)


def _line(torch: Any, numbers: Any, results: Any) -> tuple[Any, ...] | None:
    """Factor and offset of each channel, where all its results lie on a line over its numbers."""
    some = slice(None, None, max(1, numbers.shape[1] // _TRIED))
    x, y = numbers[:, some].double(), results[:, some].double()
    low, high = x.argmin(1, keepdim=True), x.argmax(1, keepdim=True)
    span = x.gather(1, high) - x.gather(1, low)
    if not bool((span > 0).all()):
        return None  # of a channel of equal numbers the scale cannot be told
    factor = (y.gather(1, high) - y.gather(1, low)) / span
    offset = y.gather(1, low) - factor * x.gather(1, low)
    for every in (some, slice(None)):
        y = results[:, every].double()
        away = (factor * numbers[:, every].double() + offset - y).abs().amax(1)
        if not bool((away <= _EXACT * (y.amax(1) - y.amin(1))).all()):
            return None
    factors = tuple(float(f"{each:.3g}") for each in factor.flatten().tolist())
    return factors, tuple(round(each, 3) + 0.0 for each in offset.flatten().tolist())
