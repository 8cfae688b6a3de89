"""Time in operators that was not theirs: a page fault of the profiler's own buffers, another process on the core."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.facts import Steps
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints, Spans


def without_pauses(operators: Spans, own_ns: Ints, steps: Steps) -> NDArray[np.float64]:
    """`own_ns` of `operators`, where every step calls the same ones in the same order: at most the steps' median.

    A pause falls on whatever operator runs just then, in each step on another. Steps that differ, and operators that
    lie in none, keep what was measured.
    """
    own = own_ns.astype(np.float64)
    step = assign(steps, operators.start)
    rows = np.flatnonzero(step >= 0)
    rows = rows[np.lexsort((operators.start[rows], operators.lane[rows], step[rows]))]
    counts = np.bincount(step[rows], minlength=len(steps))
    if len(steps) < 3 or not counts.all() or (counts != counts[0]).any():
        return own
    same = rows.reshape(len(steps), -1)
    names = operators.name[same]
    if (names != names[0]).any():
        return own
    own[same] = np.minimum(own[same], np.median(own[same], axis=0))
    return own
