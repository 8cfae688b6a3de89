"""Two tensors that meet so that every pair of their rows is written out: ``x[:, None] - y[None]``, or a product."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, for_names, names_like
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints, Trace

MEETINGS = ("aten::mul", "aten::sub", "aten::cosine_similarity")
_LEAST_DIMENSIONS = 3  # of what is written out: rows, rows, and what is summed
# What goes over them in the forward, until they are summed.
_SUMS = {f"aten::{name}" for name in ("sum", "pow", "square", "abs", "sqrt", "linalg_vector_norm", "norm")}
_PASSES = {
    "aten::mul": {"aten::mul", "aten::sum"},
    "aten::sub": {"aten::sub", *_SUMS},
    "aten::cosine_similarity": {f"aten::{name}" for name in ("cosine_similarity", "mul", "div", "clamp_min")} | _SUMS,
}
# What glibc's malloc gives back at once, as it was mapped for it alone (mallopt(3): M_MMAP_THRESHOLD is 32 MiB at
# most). Measured: 67 MB took 4.3 to 5.8 ms, behind the last operator that read them or, at the end of their function,
# the one behind it.
_BYTES, _GIVEN_BACK, _LATER, _LEAST_IDLE_NS = 4, 32 << 20, 2, 1_000_000
# Their work is no pass over the pairs, whatever the shapes of their inputs.
_OTHERS = ("mm", "bmm", "baddbmm", "addmm", "matmul", "convolution", "as_strided", "expand", "view", "unsqueeze")


@dataclass(frozen=True)
class Pairwise:
    """``operator`` writes out the pairs of ``left`` and ``right``, in the function defined at ``file``:``line``.

    ``line`` is 0 outside of all functions. ``dtypes`` as the trace has them.
    """

    operator: str
    left: Shape
    right: Shape
    dtypes: tuple[str, str]
    file: str
    line: int

    @property
    def shape(self) -> Shape:
        """Of what is written out."""
        return np.broadcast_shapes(self.left, self.right)


def pairwise(evidence: Evidence) -> Counter[Pairwise]:
    """What may write out pairs in functions of the user's: calls per step, by the window with shapes and stacks.

    Whether it does, or multiplies two tensors element by element that have all dimensions, only the source tells.
    Operators that wrap one another (``cosine_similarity`` multiplies) are both counted.
    """
    found: Counter[Pairwise] = Counter()
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return found
    steps = step_windows(trace)
    meeting = np.isin(trace.operators.name, [code for code, name in enumerate(trace.names) if name in MEETINGS])
    rows = np.flatnonzero(meeting & (assign(steps, trace.operators.start) >= 0))
    written = {int(row): two for row in rows if (two := _two(trace, int(row))) is not None}
    if not written:
        return found
    places = users_functions(trace, np.array(list(written)), record)
    for row, (left, right, dtypes) in written.items():
        if row in places:
            file, line = places[row]
            name = trace.name(int(trace.operators.name[row]))
            found[Pairwise(name, left, right, dtypes, file, line)] += 1 / len(steps)  # type: ignore[assignment]
    return found


def passes_over(evidence: Evidence, pairs: Pairwise) -> dict[str, float]:
    """Operator → share of its own time that goes over all pairs that the function makes, in the window with shapes.

    In the forward what the function itself calls; of the backward, whose operators nobody knows the caller of, those of
    the same shape, as large a part as the function has of the forward's. Nodes of the backward are counted with the
    operators that they call: to free what was written takes its time, too.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    inside = assign(steps, operators.start) >= 0
    over = for_names(trace, operators.shapes, lambda written: _whole(written) == pairs.shape, np.bool_)
    over &= inside & ~names_like(trace, operators.name, lambda name: name.removeprefix("aten::") in _OTHERS)
    back = Host(trace, steps).backward.contains(operators.start)
    forward = np.flatnonzero(over & ~back)
    places = users_functions(trace, forward, record)
    own = np.array([places.get(row) == (pairs.file, pairs.line) for row in forward.tolist()], np.bool_)
    own &= names_like(trace, operators.name[forward], _PASSES[pairs.operator].__contains__)
    taken = nesting.self_ns[forward]
    if not taken[own].sum():
        return {}
    _add_nodes(trace, nesting, over, np.flatnonzero(over & back))
    part = np.where(over & back, float(taken[own].sum() / taken.sum()), 0.0)
    part[forward[own]] = 1.0
    return self_shares(trace, nesting, part, inside)


def freed_s(evidence: Evidence, pairs: Pairwise) -> float:
    """Seconds of a step in which what was written out of pairs, in the forward, is given back to the system.

    That is no operator's time: it comes when Python lets go of a tensor, right behind the operators that went over the
    pairs, or, at the function's end, one or two later. Smaller tensors stay with the process.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators) or prod(pairs.shape) * _BYTES < _GIVEN_BACK:
        return 0.0
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    rows = np.flatnonzero((assign(steps, operators.start) >= 0) & (nesting.parent < 0) & (operators.lane == steps.lane))
    rows = rows[np.argsort(operators.start[rows], kind="stable")]
    over = for_names(trace, operators.shapes[rows], lambda written: _whole(written) == pairs.shape, np.bool_)
    over &= ~Host(trace, steps).backward.contains(operators.start[rows])
    idle = operators.start[rows[1:]] - operators.end[rows[:-1]]
    behind = np.unique(np.concatenate([np.flatnonzero(over) + later for later in range(_LATER + 1)]))
    behind = behind[behind < len(idle)]
    return float(idle[behind][idle[behind] > _LEAST_IDLE_NS].sum()) / 1e9 / max(1, len(steps))


def _add_nodes(trace: Trace, nesting: Nesting, over: Mask, inner: Ints) -> None:
    """Have the rows around `inner` counted as `over` the pairs, as far as they have no other shape."""
    shapes = trace.operators.shapes
    while len(inner):
        around = np.unique(nesting.parent[inner])
        around = around[around >= 0]
        over[around] |= ~for_names(trace, shapes[around], lambda written: bool(_whole(written)), np.bool_)
        inner = around[over[around]]


def _two(trace: Trace, row: int) -> tuple[Shape, Shape, tuple[str, str]] | None:
    """Shapes and types of two tensors that meet."""
    shapes, dtypes = (
        input_shapes(trace.name(int(trace.operators.shapes[row]))),
        trace.name(int(trace.operators.dtypes[row])),
    )
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    try:
        whole = np.broadcast_shapes(shapes[0], shapes[1])
        types = json.loads(dtypes)
    except ValueError:
        return None
    if len(whole) < _LEAST_DIMENSIONS or not isinstance(types, list) or len(types) < 2:
        return None
    return shapes[0], shapes[1], (str(types[0]), str(types[1]))


def _whole(written: str) -> Shape:
    """The shape that an operator's inputs have together; () where they do not fit."""
    try:
        return np.broadcast_shapes(*filter(None, input_shapes(written)))
    except ValueError:
        return ()
