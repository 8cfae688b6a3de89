"""All that some operators do: with what they call, and what the backward does for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, names_like

if TYPE_CHECKING:
    from advisor.trace.tables import Trace

_NODE = "autograd::engine::evaluate_function"


def worked(trace: Trace, rows: list[int]) -> Mask:
    """The operators `rows`, all of one thread, those that they call, and those of their nodes in the backward."""
    operators = trace.operators
    inside = np.zeros(len(operators), np.bool_)
    for row in rows:
        inside |= (operators.start >= operators.start[row]) & (operators.end <= operators.end[row])
    inside &= operators.lane == operators.lane[rows[-1]]
    numbers = operators.sequence[inside & (operators.sequence >= 0)]
    if len(numbers):
        nodes = names_like(trace, operators.name, lambda name: name.startswith(_NODE))
        nodes &= np.isin(operators.sequence, numbers)
        for row in np.flatnonzero(nodes).tolist():
            inside |= (
                (operators.start >= operators.start[row])
                & (operators.end <= operators.end[row])
                & (operators.lane == operators.lane[row])
            )
    return inside
