"""Convolutions of 1x1 right behind an upsampling: they do for each of many pixels what they could for few."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Calls, Function
from advisor.evidence.shapes import Shape
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_ENLARGES = re.compile(r"aten::_?upsample_(nearest|nearest_exact|linear|bilinear|bicubic|trilinear)[123]d(_aa)?")
_CONVOLVES = re.compile(r"aten::conv[123]d|aten::_?convolution")
_PASSES = ("aten::to", "aten::contiguous", "aten::_to_copy", "aten::resolve_conj", "aten::clone")
_AFTER = 3  # operators between the two


@dataclass(frozen=True)
class Enlarged:
    """Pictures that become ``larger`` times as large in ``function``, and then have ``filters`` of ``channels`` made.

    ``pixels`` are those of a picture before.
    """

    function: Function
    pixels: Shape
    larger: float
    channels: int
    filters: int


@dataclass
class Enlargements:
    """How often in a step each is there, and operator → share of its own time that goes in the other order."""

    counts: dict[Enlarged, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pair:
    """Rows of an upsampling and of the convolution behind it, and how many numbers each has."""

    upsampling: int
    convolution: int
    before: Shape
    after: Shape
    filters: int


def enlarged_first(evidence: Evidence) -> Enlargements:
    """Those of the steps; none where the operators of each step are not known by their shapes."""
    calls, found = evidence.calls, Enlargements()
    if calls is None:
        return found
    names = {calls.name(row) for rows in calls.threads for row in rows}
    pairs = {
        call.row: pair
        for call in calls.named({each for each in names if _ENLARGES.fullmatch(each)}, _AFTER)
        if (pair := _pair(calls, call)) is not None
    }
    functions = calls.functions(evidence, pairs)
    kinds = {row: _kind(pairs[row], function) for row, function in functions.items()}
    found.counts = calls.per_step(kinds.values())
    found.shares = added_up(
        each
        for row, kind in kinds.items()
        for each in (
            calls.shares([pairs[row].convolution], 1.0 / kind.larger),
            calls.shares([row], kind.filters / kind.channels),
        )
    )
    return found


def _kind(pair: _Pair, function: Function) -> Enlarged:
    before, after = pair.before[2:], pair.after[2:]
    return Enlarged(function, before, prod(after) / prod(before), pair.before[1], pair.filters)


def _pair(calls: Calls, call: Called) -> _Pair | None:
    """The convolution right behind an upsampling that makes a picture larger."""
    before = call.shapes[0] if call.shapes else ()
    if len(before) < 3 or 0 in before:
        return None
    for row in call.after:
        name = calls.name(row)
        if _CONVOLVES.fullmatch(name):
            after, weight = [*calls.shapes(row), (), ()][:2]
            # Of groups a filter has fewer channels than there are; each group's are as many.
            of_pixels = len(weight) == len(before) and {*weight[2:]} == {1} and weight[1] == before[1]
            of_pixels &= _plain(calls, row)
            larger = len(after) == len(before) and after[:2] == before[:2] and prod(after) > prod(before)
            return _Pair(call.row, row, before, after, weight[0]) if of_pixels and larger else None
        if name not in _PASSES:
            return None
    return None


def _plain(calls: Calls, row: int) -> bool:
    """Whether a convolution goes over each pixel once, and adds none at the borders, as far as the trace tells."""
    values = calls.values(row)
    stride, padding = ([int(each) for each in re.findall(r"\d+", text)] for text in [*values[3:5], "", ""][:2])
    return all(each == 1 for each in stride) and not any(padding)
