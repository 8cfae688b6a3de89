"""Fourier transforms of lengths with a large prime factor, which take many times as long as their neighbours'."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import input_shapes
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

REAL, BACK, COMPLEX = "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"
# A length whose largest prime factor is not larger takes 1 to 3 ns a number, with MKL, whatever the length.
LARGEST_FACTOR = 61
# With a larger one: (largest factor at most, length at most, ns a number). Measured with torch 2.14 and its MKL on an
# EPYC with AVX2, 64 rows of 30 lengths from 500 to 44,101, real, back and complex alike: 5.9 to 7.1 for 127 and 73, and
# 6.4 to 8.2, 9.2 to 11, 9.5 to 20 and 22 to 26 for primes.
_SLOW_NS = (
    (127, 1 << 62, 6.0),
    (1 << 62, 1500, 7.0),
    (1 << 62, 6000, 9.5),
    (1 << 62, 20_000, 13.0),
    (1 << 62, 1 << 62, 23.0),
)
_LONGEST = 1 << 40  # what is longer is damage, and takes long to be factored
# A power of two, likewise: real ones and complex ones.
_FAST_NS = {REAL: 1.0, BACK: 1.0, COMPLEX: 2.0}


@dataclass(frozen=True)
class SlowTransform:
    """Transforms of a ``length``, begun by ``function``, the user's: (file, first line), 0 outside of all."""

    length: int
    function: tuple[str, int]


def slow_transforms(evidence: Evidence) -> tuple[dict[SlowTransform, float], dict[str, float], dict[str, float]]:
    """Forward transforms: times per step; operator → share of its own time that all of them take, the backward's too.

    And of this what powers of two would save on a CPU.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    inside = (step >= 0) & names_like(trace, operators.name, _FAST_NS.__contains__)
    lengths = {row: length for row in np.flatnonzero(inside).tolist() if (length := _slow_length(trace, row))}
    if not lengths:
        return {}, {}, {}
    back = Host(trace, steps).backward.contains(operators.start)
    outer = {row: _outermost(nesting, row) for row in lengths if not back[row]}
    places = users_functions(trace, np.array(sorted(set(outer.values())), np.int64), record)
    counts: dict[SlowTransform, float] = {}
    for row, top in outer.items():
        if top in places:
            each = SlowTransform(lengths[row], places[top])
            counts[each] = counts.get(each, 0.0) + 1 / len(steps)
    shares: dict[str, float] = {}
    saved: dict[str, float] = {}
    for name in _FAST_NS:
        for length in set(lengths.values()):
            rows = np.zeros(len(operators), np.bool_)
            rows[[row for row, each in lengths.items() if each == length]] = True
            rows &= names_like(trace, operators.name, name.__eq__)
            taken = self_shares(trace, nesting, rows, step >= 0).get(name, 0.0)
            if taken:
                shares[name] = shares.get(name, 0.0) + taken
                saved[name] = saved.get(name, 0.0) + taken * max(0.0, 1.0 - left(name, length))
    return counts, shares, saved


def left(operator: str, length: int) -> float:
    """What a transform of the next power of two takes, of what one of `length` takes, on a CPU."""
    factor = largest_factor(length)
    if factor <= LARGEST_FACTOR:
        return 1.0
    slow = next(ns for most, longest, ns in _SLOW_NS if factor <= most and length <= longest)
    return _FAST_NS[operator] / slow * power_of_two(length) / length


def power_of_two(length: int) -> int:
    """The smallest one that is not less."""
    return 1 << (length - 1).bit_length()


def fast_length(length: int) -> int:
    """The smallest even number that is not less and has no prime factor over 7: what cuFFT and MKL have kernels for."""
    length += length % 2
    while largest_factor(length) > 7:
        length += 2
    return length


def largest_factor(number: int) -> int:
    """The largest prime factor; 1 of 1."""
    largest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            largest, number = factor, number // factor
        factor += 1
    return max(largest, number)


def _slow_length(trace: Trace, row: int) -> int:
    """The length over which this operator transforms, the worst of several; 0 where it is a fast one, or not known."""
    operators = trace.operators
    if operators.values is None or operators.values[row] < 0 or operators.shapes[row] < 0:
        return 0
    try:
        values = json.loads(trace.name(int(operators.values[row])))
        dims = [int(each) for each in json.loads(values[1])]
        shape = input_shapes(trace.name(int(operators.shapes[row])))[0]
        lengths = [shape[each] for each in dims]
        if trace.name(int(operators.name[row])) == BACK:
            lengths[-1] = int(values[3])
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return 0
    known = [each for each in lengths if 0 < each < _LONGEST]
    return max((each for each in known if largest_factor(each) > LARGEST_FACTOR), default=0)


def _outermost(nesting: Nesting, row: int) -> int:
    while nesting.parent[row] >= 0:
        row = int(nesting.parent[row])
    return row
