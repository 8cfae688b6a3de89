"""The scores for a whole vocabulary that a language model's head computes last, where no operator takes them.

Told by the shapes: a linear layer whose weight is of the shape of an embedding's, and nothing that is given a tensor of
the shape that comes out of it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.shapes import Shape, list_shapes, shapes_at
from advisor.evidence.steps import assign, by_step, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_EMBEDDING, _LINEAR = "aten::embedding", "aten::linear"
_TAKE_LISTS = {
    f"aten::{name}" for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "einsum")
}
_MOST_LISTED = 30  # tensors of a list whose shapes a profiler writes down: TENSOR_LIST_DISPLAY_LENGTH_LIMIT
# The same numbers in another type or order: no use yet. Older versions of transformers hand scores on in float32.
_HANDS_ON = {f"aten::{name}" for name in ("to", "contiguous", "view", "reshape", "detach", "alias", "is_pinned")}


def unread_scores(evidence: Evidence) -> tuple[Shape, dict[str, float]]:
    """The shape of the scores, the largest, and operator → share of its own time that goes into making them.

    () and nothing where a step has none, or an operator takes some.
    """
    trace, nothing = evidence.detail, ((), dict[str, float]())
    if trace is None or not len(trace.operators):
        return nothing
    operators, steps, nesting = trace.operators, step_windows(trace), Nesting(trace)
    step = assign(steps, operators.start)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    outer = outer[np.argsort(operators.start[outer], kind="stable")]
    found: list[int] = []
    largest: Shape = ()
    for rows in by_step(outer, step[outer], len(steps)):
        names = [trace.name(int(code)) for code in operators.name[rows]]
        shapes = [shapes_at(trace, row) for row in rows.tolist()]
        tables = [each[0] for name, each in zip(names, shapes, strict=True) if name == _EMBEDDING and each]
        words = max(tables, key=lambda each: each[0], default=())  # of positions there are fewer
        heads = [at for at, name in enumerate(names) if name == _LINEAR and shapes[at][1:2] == [words]]
        if len(heads) != 1:
            return nothing
        (head,) = heads
        scores = (*shapes[head][0][:-1], words[0])
        if any(_takes(trace, int(rows[at]), names[at], shapes[at], scores) for at in range(head + 1, len(names))):
            return nothing
        largest = max(largest, scores, key=np.prod)
        found.append(int(rows[head]))
    if not found:
        return nothing
    return largest, self_shares(trace, nesting, worked(trace, found), step >= 0)


def _takes(trace: Trace, row: int, name: str, shapes: list[Shape], scores: Shape) -> bool:
    """Whether an operator may be given the scores, in their shape or in another one, or a list of nobody knows what."""
    code = int(trace.operators.shapes[row])
    listed = list_shapes(trace.name(code)) if code >= 0 else []
    if name in _TAKE_LISTS and (not listed or len(listed) >= _MOST_LISTED):
        return True
    # What is in a list may have been given another shape before.
    there = any(prod(each) == prod(scores) for each in listed)
    there |= any(each[-1:] == scores[-1:] and prod(each) == prod(scores) for each in shapes)
    return there and name not in _HANDS_ON
