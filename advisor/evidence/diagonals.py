"""Products of matrices of which only the diagonal is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Calls, Function
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_PRODUCTS = ("aten::matmul", "aten::mm")
_DIAGONALS = ("aten::trace", "aten::diag", "aten::diagonal", "aten::diagonal_copy", "aten::linalg_diagonal")
_AFTER = 16  # operators between a product and its diagonal: of two products their sum is taken, too
_LEAST = 32  # rows: of smaller ones calling takes the time
# Of n rows by n columns of numbers that are multiplied, and added up, n remain, each with what two readings take more
# than a product's multiplications do: 6 to 48 of them, forward and backward, measured with torch 2.14 on one core and
# on two with AVX-512, 64 to 1000 rows of 32 to 256 numbers.
_EACH = 30.0


@dataclass(frozen=True)
class Diagonal:
    """Products in ``function`` of ``rows`` by ``inner`` numbers, whose diagonal is taken."""

    function: Function
    rows: int
    inner: int


def diagonal_products(evidence: Evidence) -> tuple[dict[Diagonal, float], dict[str, float]]:
    """Such products per step; operator → share of its own time that goes where rows are multiplied instead."""
    calls = evidence.calls
    if calls is None:
        return {}, {}
    found = {call.row: size for call in calls.named(_PRODUCTS, _AFTER) if (size := _size(calls, call)) is not None}
    known = {row: Diagonal(place, *found[row]) for row, place in calls.functions(evidence, found).items()}
    by_size: dict[float, list[int]] = {}
    for row, each in known.items():
        by_size.setdefault(min(1.0, _EACH / each.rows), []).append(row)
    return calls.per_step(known.values()), added_up(calls.shares(rows, left) for left, rows in by_size.items())


def _size(calls: Calls, call: Called) -> tuple[int, int] | None:
    """(rows, inner numbers) of a square product that a diagonal of such a matrix is taken behind; else None."""
    if len(call.shapes) < 2 or len(call.shapes[0]) != 2 or len(call.shapes[1]) != 2:
        return None
    (rows, inner), (_, columns) = call.shapes[0], call.shapes[1]
    if rows != columns or rows < _LEAST:
        return None
    taken = (row for row in call.after if calls.name(row) in _DIAGONALS)
    return (rows, inner) if any((calls.shapes(row) or [()])[0] == (rows, rows) for row in taken) else None
