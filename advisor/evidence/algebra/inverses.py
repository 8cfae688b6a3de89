"""Inverses of matrices that are only multiplied by something narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Calls, Function
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_INVERSES = ("aten::inverse", "aten::linalg_inv", "aten::linalg_inv_ex")
_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm", "aten::mv")
_AFTER = 12  # operators between an inverse and its product
_NARROW = 4  # times as many columns has the inverse as what it is multiplied by, at least
_LEAST = 16  # rows: of smaller ones calling takes the time
# What solve leaves of an inverse of 500 rows times 1 to 100 columns, two cores with AVX-512, torch 2.14: 0.44 to 0.58,
# with its backward 0.30 to 0.73; counted in operations a third (a decomposition and two triangles, where the inverse is
# one and 500 columns), and in the backward no product of two matrices.
_LEFT, _LEFT_BACKWARD, _OF_COLUMNS = 0.45, 0.12, 1.5


@dataclass(frozen=True)
class Inverse:
    """Inverses of ``size`` rows in ``function``, multiplied by so many ``columns``.

    ``vectors``: what they are multiplied by has one dimension. ``many``: a call inverts several matrices.
    """

    function: Function
    size: int
    columns: int
    vectors: bool
    many: bool


def multiplied_inverses(evidence: Evidence) -> tuple[dict[Inverse, float], dict[str, float]]:
    """Inverses per step; operator → share of its own time that goes where a system is solved instead."""
    calls = evidence.calls
    if calls is None:
        return {}, {}
    found = {call.row: other for call in calls.named(_INVERSES, _AFTER) if (other := _columns(calls, call)) is not None}
    known: dict[int, Inverse] = {}
    for row, function in calls.functions(evidence, found).items():
        shape, (columns, vectors) = calls.shapes(row)[0], found[row]
        known[row] = Inverse(function, shape[-1], columns, vectors, len(shape) > 2)
    by_size: dict[float, list[int]] = {}
    for row, each in known.items():
        by_size.setdefault(min(1.0, _LEFT_BACKWARD + _OF_COLUMNS * each.columns / each.size), []).append(row)
    shares = added_up(calls.shares(rows, _LEFT, left_backward) for left_backward, rows in by_size.items())
    return calls.per_step(known.values()), shares


def _columns(calls: Calls, call: Called) -> tuple[int, bool] | None:
    """(columns of the other operand of the product that an inverse goes into, whether it is a vector).

    None where no product follows, or one by something wide.
    """
    shape = call.shapes[0] if call.shapes else ()
    if len(shape) < 2 or shape[-1] < _LEAST:
        return None
    for row in call.after:
        given = calls.shapes(row)
        if calls.name(row) not in _PRODUCTS or len(given) < 2 or shape not in given[:2]:
            continue
        left, right = given[0], given[1]
        other = right if left == shape else left
        columns = 1 if len(other) < 2 else right[-1] if left == shape else left[-2]
        return (columns, len(other) < 2) if columns * _NARROW <= shape[-1] else None
    return None
