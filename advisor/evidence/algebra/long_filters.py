"""Convolutions of signals with long kernels, which take a fraction of the operations through Fourier transforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.algebra.fft_lengths import power_of_two
from advisor.evidence.by_function import Called, Calls, Function

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_CONVOLVES = ("aten::conv1d",)
_LEAST_TAPS = 256
_MOST_CHANNELS = 16  # into one filter: of more the direct one is a product of matrices
# ns for each number that is transformed and each product of two, of powers of two, torch 2.14 with MKL, AVX-512, six
# sizes of 300 to 9,601 taps and 1 to 8 filters on a quiet machine: 1.4 to 6.5 forward and 3.5 to 20 with the backward,
# by one thread or two; of the longest 10 and 17 to 29. What it took directly, 10 to 1,900 times that, is in the trace.
_NS, _NS_BACKWARD = 7.0, 12.0
_LEAST_TIMES = 2.0  # as long as the transforms takes what is reported, at least


@dataclass(frozen=True)
class LongFilter:
    """Convolutions in ``function`` of signals of ``length`` with ``filters`` kernels of ``taps`` each.

    Each of ``channels`` per group, of so many ``groups``.
    """

    function: Function
    length: int
    taps: int
    filters: int
    channels: int
    groups: int
    padding: int


def long_filters(evidence: Evidence) -> tuple[dict[LongFilter, float], dict[str, float], float]:
    """Such convolutions per step; operator → share of its own time that goes; seconds of a step that come instead."""
    calls = evidence.calls
    if calls is None:
        return {}, {}, 0.0
    there = {call.row: known for call in calls.named(_CONVOLVES, 0) if (known := _filter(calls, call)) is not None}
    found: dict[int, LongFilter] = {}
    comes_ns = 0.0
    for row, function in calls.functions(evidence, there).items():
        batch, sizes = there[row]
        nodes = calls.nodes([row])
        instead = _transforms_ns(batch, sizes, bool(nodes))
        if sum(calls.lasted_ns(each) for each in (row, *nodes)) >= _LEAST_TIMES * instead:
            found[row] = LongFilter(function, *sizes)
            comes_ns += instead
    return calls.per_step(found.values()), calls.shares(found, 0.0), comes_ns / 1e9 / len(calls.steps)


def _transforms_ns(batch: int, known: tuple[int, int, int, int, int, int], backward: bool) -> float:
    length, taps, filters, channels, groups, _ = known
    size = power_of_two(length + taps - 1)
    transformed = size * (batch * channels * groups + filters * channels + batch * filters)
    products = batch * filters * channels * (size // 2 + 1)
    return (transformed + products) * (_NS + (_NS_BACKWARD if backward else 0.0))


def _filter(calls: Calls, call: Called) -> tuple[int, tuple[int, int, int, int, int, int]] | None:
    """(batch, what a LongFilter has) of a call that is one, with a stride and dilation of one."""
    values = calls.values(call.row)
    if len(call.shapes) < 2 or len(values) < 7 or len(call.shapes[0]) != 3 or len(call.shapes[1]) != 3:
        return None
    (batch, _, length), (filters, channels, taps) = call.shapes[:2]
    padding = _one(values[4])
    if taps < _LEAST_TAPS or not 1 <= channels <= _MOST_CHANNELS or padding is None or padding >= taps:
        return None
    if _one(values[3]) != 1 or _one(values[5]) != 1 or not values[6].isdigit() or length + 2 * padding < taps:
        return None
    return batch, (length, taps, filters, channels, int(values[6]), padding)


def _one(written: str) -> int | None:
    """The number of ``[2000]``."""
    inner = written.strip("[]")
    return int(inner) if inner.isdigit() else None
