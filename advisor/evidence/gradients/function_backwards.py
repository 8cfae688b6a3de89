"""How long the backward of some of torch's functions takes, each by its own share in the trace of the steps.

What a decomposition solves in the forward is solved with the same factors in the backward, which takes half of its
time; a product has two products there. The whole step's backward says nothing about either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import MOST_BACKWARD, NODE, backward_over_forward
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_OPERATOR = "aten::"
# A matrix exponential's backward is one of a matrix with twice as many rows and columns (torch's formula; Al-Mohy and
# Higham 2009): as much as eight of them.
_DOUBLED, _MOST_DOUBLED = ("aten::matrix_exp", "aten::linalg_matrix_exp"), 8.0
# What Python calls otherwise than the operator that runs.
_OTHERWISE = {"radd": "add", "rmul": "mul", "truediv": "div", "rmatmul": "matmul", "rpow": "pow"} | {
    "cross_entropy": "cross_entropy_loss"
}


def backward_seconds(evidence: Evidence, forward_s: Mapping[str, float], at_most: float = MOST_BACKWARD) -> float:
    """Seconds that the backward of these functions takes: torch's name of each → its seconds in the forward.

    Each by how much longer than its calls in the traced steps their nodes are, all functions of that name together; one
    that the trace does not have as an operator by the whole step's. Of all of them no more than `at_most` times their
    forward (what :func:`backward_over_forward` says of a whole step at most), but for those whose backward is known to
    be longer.
    """
    ratios, others = _ratios(evidence), backward_over_forward(evidence)
    total = 0.0
    for most, doubled in ((at_most, False), (_MOST_DOUBLED, True)):
        those = {name: taken for name, taken in forward_s.items() if (_operator(name) in _DOUBLED) is doubled}
        seconds = sum(taken * ratios.get(_operator(name), others) for name, taken in those.items())
        total += min(seconds, most * sum(those.values()))
    return total


def _operator(name: str) -> str:
    bare = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    return _OPERATOR + _OTHERWISE.get(bare, bare)


def _ratios(evidence: Evidence) -> dict[str, float]:
    """Operator → time of the nodes of its calls in the steps over that of the calls, where a backward goes through any.

    Autograd counts the nodes of a thread: an operator begins with the number of the next one, and has made those up to
    where whatever is recorded after it begins, another operator, a function of the user's or the derivative of one.
    None where several threads record, of which a node does not say which it is of.
    """
    trace, operators = evidence.trace, evidence.trace.operators
    recorded = (operators.sequence >= 0) & (assign(evidence.steps, operators.start) >= 0)
    node = names_like(trace, operators.name, lambda name: name.startswith(NODE))
    outermost = recorded & (evidence.nesting.parent < 0)
    rows = np.flatnonzero(recorded & ~node)
    rows = rows[np.argsort(operators.start[rows], kind="stable")]
    if len(np.unique(operators.lane[rows])) != 1:
        return {}
    nodes = np.flatnonzero(outermost & node)
    nodes = nodes[np.argsort(operators.sequence[nodes], kind="stable")]
    numbers = operators.sequence[nodes]
    spent = np.concatenate(([0], np.cumsum((operators.end - operators.start)[nodes])))
    called = outermost[rows] & names_like(trace, operators.name, lambda name: name.startswith(_OPERATOR))[rows]
    called &= ~evidence.host.backward.contains(operators.start[rows])
    after = np.searchsorted(operators.start[rows], operators.end[rows])  # what is recorded next, and is not part of it
    called &= after < len(rows)
    calls, first = rows[called], operators.sequence[rows[called]]
    last = operators.sequence[rows[after[called]]]
    back = spent[np.searchsorted(numbers, last)] - spent[np.searchsorted(numbers, first)]
    forward: dict[int, float] = {}
    backward: dict[int, float] = {}
    took = (operators.end - operators.start)[calls]
    for code, ahead, again in zip(operators.name[calls].tolist(), took.tolist(), back.tolist(), strict=True):
        if again > 0:
            forward[code] = forward.get(code, 0.0) + ahead
            backward[code] = backward.get(code, 0.0) + again
    return {trace.name(code): backward[code] / forward[code] for code in forward if forward[code]}
