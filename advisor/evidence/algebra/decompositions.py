"""Singular value decompositions: of which shapes, with which factors, and what smaller ones would leave of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Calls, Function

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_DECOMPOSE = ("aten::linalg_svd",)
_AFTER = 12  # operators behind a decomposition, of which one says what was recorded before it
_FAR = 3  # times as long as wide is a matrix whose full factor is worth a word
# What reduced factors leave of the full ones, torch 2.14 with MKL, two cores with AVX-512, one thread and two: 0.15
# to 0.27 of 300x24, 0.01 to 0.04 of 1000x50, 0.3 of 128x32, 0.3 to 1 of 512x128, 0.64 of 64x8, and all of 16x4. By
# operations (Golub and Van Loan, Matrix Computations, 8.6.4) it is 0.15, 0.09, 0.5, 0.5, 0.25, and 0.5: short ones
# take more than that.
_SHORT = 16.0
# What singular values alone leave of reduced factors: 0.33 to 0.57 of 32 to 128 columns; of more it varied too much.
_VALUES, _MOST_VALUES = 0.6, 128


@dataclass(frozen=True)
class Decomposed:
    """Decompositions of ``rows`` x ``columns`` in ``function``, of tensors with so many ``dimensions``.

    ``full``: with all columns of both factors. ``recorded``: for a backward, or it cannot be told that not.
    """

    function: Function
    rows: int
    columns: int
    dimensions: int
    full: bool
    recorded: bool

    @property
    def short(self) -> int:
        """How many singular values there are."""
        return min(self.rows, self.columns)

    @property
    def surplus(self) -> bool:
        """Whether one factor has many times as many columns as there are singular values."""
        return self.full and max(self.rows, self.columns) >= _FAR * self.short

    @property
    def left_reduced(self) -> float:
        """The part of its time that the reduced factors take."""
        if not self.surplus:
            return 1.0
        long, short = max(self.rows, self.columns), self.short
        full = 4.0 * long**2 * short + 22.0 * short**3
        return min(1.0, (6.0 * long * short**2 + 20.0 * short**3) / full + _SHORT / long)

    @property
    def left_values(self) -> float:
        """The part of its time that the singular values alone take; a backward needs the factors, too."""
        fewer = not self.recorded and _SHORT < self.short <= _MOST_VALUES
        return self.left_reduced * (_VALUES if fewer else 1.0)


def decomposed(evidence: Evidence) -> dict[Decomposed, list[int]]:
    """The decompositions of the steps outside of the backward, and their rows in the trace."""
    calls = evidence.calls
    if calls is None:
        return {}
    there = {call.row: call for call in calls.named(_DECOMPOSE, _AFTER) if call.shapes and len(call.shapes[0]) >= 2}
    found: dict[Decomposed, list[int]] = {}
    for row, function in calls.functions(evidence, there).items():
        shape, given = there[row].shapes[0], calls.values(row)
        if len(given) < 2 or min(shape) < 1:
            continue
        full = given[1] == "True"
        recorded = bool(calls.nodes([row])) or _recorded(calls, there[row])
        each = Decomposed(function, shape[-2], shape[-1], len(shape), full, recorded)
        found.setdefault(each, []).append(row)
    return found


def _recorded(calls: Calls, call: Called) -> bool:
    """Whether a call has put a node into autograd's graph: then what comes next has a higher number than it has."""
    numbers = calls.numbers(call.row)
    if not numbers:
        return False
    behind = next((found for row in call.after if (found := calls.numbers(row))), None)
    return behind is None or min(behind) > min(numbers)
