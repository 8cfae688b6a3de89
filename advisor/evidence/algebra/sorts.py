"""Sorts of which only the beginning is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Calls, Function
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_SORTS = ("aten::sort", "aten::argsort")
_WHOLE = ("bool", "unsigned char", "signed char", "short int", "int", "long int", "long long")  # as traces call types
_AFTER = 8  # operators between a sort and the slice of it
_MOST = 0.25  # of what is sorted: of more there is little to gain
# What topk leaves of a sort of 1,000 and more numbers a row (1 to 4,096 rows), torch 2.14, two cores with AVX-512: 0.03
# for one to ten of 20,000, 0.06 for 10 of 1,000, 0.18 to 0.29 for a tenth, 0.28 to 0.42 for a quarter. Of rows of 64
# numbers 0.3 for a tenth.
_LEFT, _OF_COUNT, _OF_SHORT = 0.025, 1.4, 10.0
_LEFT_BACKWARD = 0.25  # zeros of the whole size are made, and little is put into them


@dataclass(frozen=True)
class Sorted:
    """Sorts of ``size`` numbers each, of which ``count`` are read, of tensors with so many ``dimensions``."""

    function: Function
    size: int
    count: int
    dimensions: int


def partly_read(evidence: Evidence) -> tuple[dict[Sorted, float], dict[str, float]]:
    """Sorts per step, by function and size; operator → share of its own time that goes with topk in their place."""
    calls = evidence.calls
    if calls is None:
        return {}, {}
    found = {call.row: read for call in calls.named(_SORTS, _AFTER) if (read := _read(calls, call)) is not None}
    sorts = {row: Sorted(function, *found[row]) for row, function in calls.functions(evidence, found).items()}
    by_size: dict[tuple[int, int], list[int]] = {}
    for row, each in sorts.items():
        by_size.setdefault((each.size, each.count), []).append(row)
    shares = added_up(
        calls.shares(rows, min(1.0, _LEFT + _OF_COUNT * count / size + _OF_SHORT / size), _LEFT_BACKWARD)
        for (size, count), rows in by_size.items()
    )
    return calls.per_step(sorts.values()), shares


def _read(calls: Calls, call: Called) -> tuple[int, int, int] | None:
    """(numbers that are sorted, those that are read of them, dimensions), where a slice of as much follows."""
    shape = call.shapes[0] if call.shapes else ()
    if calls.dtype(call.row) in _WHOLE:
        return None  # of these many are equal, which a sort leaves in their order, and topk gives in any
    values = calls.values(call.row)
    # sort(x, dim, descending), sort.stable(x, stable, dim, descending), argsort likewise.
    numbers = [each for each in values if each.lstrip("-").isdigit()]
    if not shape or len(numbers) != 1:
        return None
    dim = int(numbers[0]) % len(shape)
    for row in call.after:
        given = calls.shapes(row)
        if calls.name(row) != "aten::slice" or not given or given[0] != shape:
            continue
        along, _, end, *_ = [*calls.values(row)[1:], "", "", ""]
        if along == str(dim) and end.isdigit() and 0 < int(end) <= _MOST * shape[dim]:
            return shape[dim], int(end), len(shape)
    return None
