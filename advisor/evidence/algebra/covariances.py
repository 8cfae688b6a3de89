"""Covariance matrices that a distribution factors, though what makes them has the factors at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import input_shapes
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_FILE, _NAME = "torch/distributions/multivariate_normal.py", "__init__"
_FACTORS = ("aten::linalg_cholesky", "aten::linalg_cholesky_ex")
_PRODUCTS = ("aten::matmul", "aten::bmm")
_DIAGONAL = "aten::diag_embed"
_LOW = 3  # times as many rows as columns, from which on a product with its own transpose is one of low rank
_BEFORE = 6  # operators between the product and the distribution that is given it
# Of the other operators, which check what is given: a factor is compared with its lower triangle, a covariance with its
# transpose, by isclose, and factored once more to see whether it can be. 3 passes for 8.
_CHECKS_LEFT = 3 / 8


@dataclass(frozen=True)
class Factored:
    """The user's function, (file, first line), that gives a distribution a covariance of ``size`` rows.

    ``rank``: that of the product in it, of which it has more than a diagonal; 0 where there is none of low rank.
    """

    function: tuple[str, int]
    size: int
    rank: int


def factored_covariances(evidence: Evidence) -> tuple[dict[Factored, float], dict[str, float]]:
    """What makes such a distribution, times per step; and what goes with them.

    That is operator → share of its own time: of factoring, its backward, the product before it, and of the checks; of
    one of low rank also that of all that is as large as the covariance.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    counts: dict[Factored, float] = {}
    gone, checks = np.zeros(len(operators), np.bool_), np.zeros(len(operators), np.bool_)
    for lane in np.unique(operators.lane[outer]).tolist():
        stacks, rows = Stacks.of(trace, lane), outer[operators.lane[outer] == lane]
        for call, function in enumerate(stacks.functions):
            if function.name != _NAME or not function.path.endswith(_FILE):
                continue
            inside = rows[
                (operators.start[rows] >= stacks.start[call]) & (operators.end[rows] <= stacks.end[call])
            ].tolist()
            factoring = [row for row in inside if trace.name(int(operators.name[row])) in _FACTORS]
            where = users_functions(trace, np.array(inside[:1], np.int64), record) if factoring else {}
            for place in where.values():
                before = rows[operators.end[rows] <= stacks.start[call]][-_BEFORE:].tolist()
                products = [row for row in before if _own_product(trace, row) is not None][-1:]
                size, rank = (_own_product(trace, products[0]) if products else None) or (0, 0)
                rank = rank if _LOW * rank <= size else 0
                each = Factored(place, size, rank)
                counts[each] = counts.get(each, 0.0) + 1 / len(steps)
                whole = inside if rank else factoring
                if rank:  # nothing is as large as the covariance any more
                    behind = rows[operators.start[rows] >= stacks.end[call]].tolist()
                    whole = whole + [row for row in (*before, *behind) if _as_large(trace, row, size)]
                gone |= worked(trace, whole + products)
                checks |= worked(trace, inside)
    if not counts:
        return {}, {}
    whole = self_shares(trace, nesting, gone, step >= 0)
    rest = self_shares(trace, nesting, checks & ~gone, step >= 0)
    names = whole.keys() | rest.keys()
    return counts, {name: whole.get(name, 0.0) + (1.0 - _CHECKS_LEFT) * rest.get(name, 0.0) for name in names}


def _own_product(trace: Trace, row: int) -> tuple[int, int] | None:
    """(rows, columns) of the matrices that an operator multiplies by their own transposes, by the shapes."""
    if trace.name(int(trace.operators.name[row])) not in _PRODUCTS or trace.operators.shapes[row] < 0:
        return None
    left, right = [*input_shapes(trace.name(int(trace.operators.shapes[row]))), (), ()][:2]
    fits = len(left) > 1 and left[:-2] == right[:-2] and left[-2:] == right[:-3:-1]
    return (left[-2], left[-1]) if fits else None


def _as_large(trace: Trace, row: int, size: int) -> bool:
    """Whether an operator is given matrices of so many rows and columns, or makes them of a diagonal."""
    if trace.operators.shapes[row] < 0:
        return False
    shapes = input_shapes(trace.name(int(trace.operators.shapes[row])))
    if trace.name(int(trace.operators.name[row])) == _DIAGONAL:
        return any(each[-1:] == (size,) for each in shapes)
    return any(each[-2:] == (size, size) for each in shapes)
