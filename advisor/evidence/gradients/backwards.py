"""A step's calls of ``backward``, and what several of them go through one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.harness import layout

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.nesting import Nesting
    from advisor.trace.intervals import Ints
    from advisor.trace.tables import Trace

MOST_BACKWARD = 2.0  # over the forward
NODE = "autograd::engine::evaluate_function: "  # how autograd's engine names what it computes, by the node's own name

Part = tuple[int, int, float]
"""From, to (ns), and which share of it is for nothing."""


def backward_over_forward(evidence: Evidence) -> float:
    """How many times as long as its forward the backward of something takes, by the whole step's.

    A matrix product has two products there, what is elementwise one. Where the step's own is longer, it is for other
    reasons (second derivatives, recomputed activations).
    """
    forward, backward = evidence.breakdown.share("forward"), evidence.breakdown.share("backward")
    return min(MOST_BACKWARD, backward / forward) if forward else 0.0


def backward_over(evidence: Evidence, operators: Collection[str], nodes: Collection[str]) -> float | None:
    """How many times as long as in the forward of a traced step the backward of such operators takes.

    `operators` by their own time, where the forward calls them; `nodes`, of their backward, by names, with all that
    these do. None where there are none.
    """
    trace, steps, rows = evidence.trace, evidence.steps, evidence.trace.operators
    inside = assign(steps, rows.start) >= 0
    backward = evidence.host.backward.contains(rows.start)
    forward = inside & ~backward & names_like(trace, rows.name, operators.__contains__)
    named = tuple(f"{NODE}{each}" for each in nodes)
    back = inside & names_like(trace, rows.name, named.__contains__)
    took = int((rows.end - rows.start)[forward].sum())
    return float((rows.end - rows.start)[back].sum()) / took if took else None


def backward_calls(evidence: Evidence) -> tuple[Ints, Ints]:
    """Where the script's calls of ``backward`` in the steps begin and end, in ns, in their order."""
    steps, annotations = evidence.steps, evidence.trace.annotations
    calls = names_like(evidence.trace, annotations.name, layout.BACKWARD_RANGE.__eq__)
    calls &= assign(steps, annotations.start) >= 0
    order = np.argsort(annotations.start[calls])
    return annotations.start[calls][order], annotations.end[calls][order]


def kernels_left(evidence: Evidence, parts: Iterable[Part], lane: int) -> NDArray[np.float64]:
    """What is left of each row of ``Trace.kernels`` without `parts` of a thread's time, by where it is launched."""
    kernels, runtime = evidence.trace.kernels, evidence.trace.runtime
    scale = np.ones(len(kernels))
    launch = evidence.device.items_launch[: len(kernels)]
    known = np.flatnonzero(launch >= 0)
    known = known[runtime.lane[launch[known]] == lane]
    moment = runtime.start[launch[known]]
    for start, end, share in parts:
        scale[known[(moment >= start) & (moment < end)]] = 1.0 - share
    return scale


@dataclass(frozen=True)
class SharedBackward:
    """``seconds`` of the host per traced step, in nodes that a later backward of the step goes through again.

    ``kernel_scale``: what is left of each row of ``Trace.kernels`` without them. ``backwards``: how many of a step go
    through the same nodes. ``calls``: which of a step's calls of ``backward`` these are, counted from 0.
    """

    seconds: float
    backwards: int
    calls: tuple[int, ...]
    kernel_scale: NDArray[np.float64]


def shared_backward(evidence: Evidence) -> SharedBackward | None:
    """What a step's backwards do again that one for the sum of their losses would do once.

    A node of the graph has a number. None where no number comes twice in a step; where a loss is gone through again as
    a whole; and where anything happens to gradients in between (an optimizer steps, or sets them to zero), for then
    they are no sum.
    """
    trace, steps = evidence.trace, evidence.steps
    operators = trace.operators
    begin, end = backward_calls(evidence)
    if len(begin) <= len(steps):
        return None
    nodes = names_like(trace, operators.name, lambda name: name.startswith(NODE)) & (operators.sequence >= 0)
    rows = np.flatnonzero(nodes & (evidence.nesting.parent < 0))
    call = np.searchsorted(begin, operators.start[rows], side="right") - 1
    inside = (call >= 0) & (operators.start[rows] < end[np.maximum(call, 0)])
    rows, call = rows[inside], call[inside]
    again, later = _again(operators.sequence[rows], call, assign(steps, begin)[call])
    if not len(again):
        return None
    whole, twice = (np.bincount(each, minlength=len(begin)) for each in (call, call[again]))
    if ((twice == whole) & (twice > 0)).any():
        return None  # a later loss contains an earlier one, a running sum of them: what it computes is another gradient
    # Until a node is gone through again, gradients may only have added up.
    if evidence.host.optimizer.within(end[call[again]], begin[later]).any():
        return None
    lost = rows[again]
    numbers, step = operators.sequence[lost], assign(steps, begin)[call[again]]
    first = np.searchsorted(assign(steps, begin), step)
    times = np.unique(np.stack((numbers, step)), axis=1, return_counts=True)[1]
    spans = operators.start[lost].tolist(), operators.end[lost].tolist()
    parts = [(start, stop, 1.0) for start, stop in zip(*spans, strict=True)]
    lanes = np.unique(operators.lane[lost]).tolist()
    return SharedBackward(
        seconds=sum(stop - start for start, stop, _ in parts) / 1e9 / len(steps),
        backwards=1 + int(times.max()),
        calls=tuple(np.union1d(call[again] - first, later - first).tolist()),
        kernel_scale=np.minimum.reduce([kernels_left(evidence, parts, lane) for lane in lanes]),
    )


def _again(number: Ints, call: Ints, step: Ints) -> tuple[Ints, Ints]:
    """The nodes, by their numbers, that another call of the same step goes through again, and which call is next."""
    order = np.lexsort((call, number, step))
    same = (np.diff(number[order]) == 0) & (np.diff(step[order]) == 0) & (np.diff(call[order]) > 0)
    at = np.flatnonzero(same)
    return order[at], call[order[at + 1]]


def backward_s(trace: Trace, nesting: Nesting, inside: Ints) -> float:
    """Seconds of the backward for what the operators `inside`, and those in them, computed.

    From the first of its nodes to the last, others in between left out: walking from node to node is no event.
    """
    operators = trace.operators
    nodes = np.flatnonzero(names_like(trace, operators.name, lambda name: name.startswith("autograd::engine::")))
    nodes = nodes[(nesting.parent[nodes] < 0) & (operators.start[nodes] >= operators.end[inside[-1]])]
    within = (operators.start >= operators.start[inside[0]]) & (operators.end <= operators.end[inside[-1]])
    numbers = operators.sequence[within & (operators.sequence >= 0)]
    if not len(nodes) or not len(numbers):
        return 0.0
    # Numbers grow from step to step, so that those of a loop are of one step only. What records no node carries the
    # number that the next one will have.
    later = (operators.start >= operators.end[inside[-1]]) & (operators.start < operators.start[nodes].min())
    after = operators.sequence[later & (operators.lane == operators.lane[inside[0]]) & (operators.sequence >= 0)]
    end = int(after.min()) if len(after) else int(numbers.max()) + 1
    own = (operators.sequence[nodes] >= numbers.min()) & (operators.sequence[nodes] < end)
    if not own.any():
        return 0.0
    first, last = operators.start[nodes[own]].min(), operators.end[nodes[own]].max()
    others = nodes[~own & (operators.start[nodes] >= first) & (operators.end[nodes] <= last)]
    return (int(last - first) - int((operators.end[others] - operators.start[others]).sum())) / 1e9
