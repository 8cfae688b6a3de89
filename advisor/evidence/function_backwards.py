"""How long the backward of some of torch's functions takes, each by its own share in the trace of the steps.

What a decomposition solves in the forward is solved with the same factors in the backward, which takes half of its
time; a product has two products there. The whole step's backward says nothing about either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.backwards import NODE, backward_over_forward
from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_OPERATOR = "aten::"
# What Python calls otherwise than the operator that runs.
_OTHERWISE = {"radd": "add", "rmul": "mul", "truediv": "div", "rmatmul": "matmul", "pow": "pow", "rpow": "pow"}


def backward_seconds(evidence: Evidence, forward_s: Mapping[str, float]) -> float:
    """Seconds that the backward of these functions takes: torch's name of each → its seconds in the forward.

    Each by how much longer than its calls in the traced steps their nodes are, all functions of that name together; one
    that the trace does not have as an operator by the whole step's.
    """
    ratios, others = _ratios(evidence), backward_over_forward(evidence)
    return sum(seconds * ratios.get(_operator(name), others) for name, seconds in forward_s.items())


def _operator(name: str) -> str:
    bare = name.strip("_")
    return _OPERATOR + _OTHERWISE.get(bare, bare)


def _ratios(evidence: Evidence) -> dict[str, float]:
    """Operator → time of the nodes of its calls in the steps over that of the calls, where a backward goes through any.

    Autograd counts its nodes: an operator begins with the number of the next one, and has made those up to where the
    one after it begins.
    """
    trace, operators = evidence.trace, evidence.trace.operators
    recorded = (operators.sequence >= 0) & (assign(evidence.steps, operators.start) >= 0)
    outermost = recorded & (evidence.nesting.parent < 0)
    node = names_like(trace, operators.name, lambda name: name.startswith(NODE))
    nodes = np.flatnonzero(outermost & node)
    nodes = nodes[np.argsort(operators.sequence[nodes], kind="stable")]
    numbers = operators.sequence[nodes]
    spent = np.concatenate(([0], np.cumsum((operators.end - operators.start)[nodes])))
    outermost &= names_like(trace, operators.name, lambda name: name.startswith(_OPERATOR))
    outermost &= ~evidence.host.backward.contains(operators.start)
    forward: dict[int, float] = {}
    backward: dict[int, float] = {}
    for lane in np.unique(operators.lane[outermost]).tolist():
        rows = np.flatnonzero(outermost & (operators.lane == lane))
        rows = rows[np.argsort(operators.start[rows], kind="stable")]
        first = np.searchsorted(numbers, operators.sequence[rows])
        took = np.diff(spent[first], append=spent[first[-1]])  # of the last one the end is not known
        for row, back in zip(rows.tolist(), took.tolist(), strict=True):
            if back > 0:
                code = int(operators.name[row])
                forward[code] = forward.get(code, 0.0) + float(operators.end[row] - operators.start[row])
                backward[code] = backward.get(code, 0.0) + float(back)
    return {trace.name(code): backward[code] / forward[code] for code in forward if forward[code]}
