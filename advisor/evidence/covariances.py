"""Covariance matrices that a distribution factors, though what makes them has the factors at hand."""

from __future__ import annotations

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
_BEFORE = 6  # operators between the product and the distribution that is given it
# Of the other operators, which check what is given: a factor is compared with its lower triangle, a covariance with its
# transpose, by isclose, and factored once more to see whether it can be. 3 passes for 8.
_CHECKS_LEFT = 3 / 8


def factored_covariances(evidence: Evidence) -> tuple[dict[tuple[str, int], float], dict[str, float]]:
    """The user's function, (file, first line), that makes such a distribution: times per step; what goes with them.

    That is operator → share of its own time: of factoring, its backward, the product before it, and of the checks.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    counts: dict[tuple[str, int], float] = {}
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
                counts[place] = counts.get(place, 0.0) + 1 / len(steps)
                before = rows[operators.end[rows] <= stacks.start[call]][-_BEFORE:].tolist()
                gone |= worked(trace, factoring + [row for row in before if _is_square(trace, row)][-1:])
                checks |= worked(trace, inside)
    if not counts:
        return {}, {}
    whole = self_shares(trace, nesting, gone, step >= 0)
    rest = self_shares(trace, nesting, checks & ~gone, step >= 0)
    names = whole.keys() | rest.keys()
    return counts, {name: whole.get(name, 0.0) + (1.0 - _CHECKS_LEFT) * rest.get(name, 0.0) for name in names}


def _is_square(trace: Trace, row: int) -> bool:
    """Whether this operator multiplies square matrices, as many of the one as of the other."""
    if trace.name(int(trace.operators.name[row])) not in _PRODUCTS or trace.operators.shapes[row] < 0:
        return False
    left, right = [*input_shapes(trace.name(int(trace.operators.shapes[row]))), (), ()][:2]
    return len(left) > 1 and left == right and left[-1] == left[-2]
