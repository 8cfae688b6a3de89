"""Backwards of one step that go through the same part of a graph, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.harness import layout

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.intervals import Ints

_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class SharedBackward:
    """``seconds`` of the host per traced step, in nodes that a later backward of the step goes through again.

    ``kernel_scale``: what is left of each row of ``Trace.kernels`` without them. ``backwards``: how many of a step go
    through the same nodes.
    """

    seconds: float
    backwards: int
    kernel_scale: NDArray[np.float64]


def shared_backward(evidence: Evidence) -> SharedBackward | None:
    """What a step's backwards do again that one for the sum of their losses would do once.

    A node of the graph has a number. None where no number comes twice in a step; where a loss is gone through again as
    a whole; and where anything happens to gradients in between (an optimizer steps, or sets them to zero), for then
    they are no sum.
    """
    trace, steps = evidence.trace, evidence.steps
    operators, annotations = trace.operators, trace.annotations
    calls = names_like(trace, annotations.name, layout.BACKWARD_RANGE.__eq__) & (assign(steps, annotations.start) >= 0)
    order = np.argsort(annotations.start[calls])
    begin, end = annotations.start[calls][order], annotations.end[calls][order]
    if len(begin) <= len(steps):
        return None
    nodes = names_like(trace, operators.name, lambda name: name.startswith(_NODE)) & (operators.sequence >= 0)
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
    times = np.unique(
        np.stack((operators.sequence[rows[again]], assign(steps, begin)[call[again]])), axis=1, return_counts=True
    )[1]
    parts = rows[again]
    return SharedBackward(
        seconds=float((operators.end[parts] - operators.start[parts]).sum()) / 1e9 / len(steps),
        backwards=1 + int(times.max()),
        kernel_scale=_kernel_scale(evidence, parts),
    )


def _again(number: Ints, call: Ints, step: Ints) -> tuple[Ints, Ints]:
    """The nodes, by their numbers, that another call of the same step goes through again, and which call is next."""
    order = np.lexsort((call, number, step))
    same = (np.diff(number[order]) == 0) & (np.diff(step[order]) == 0) & (np.diff(call[order]) > 0)
    at = np.flatnonzero(same)
    return order[at], call[order[at + 1]]


def _kernel_scale(evidence: Evidence, rows: Ints) -> NDArray[np.float64]:
    """Nothing is left of the kernels that the nodes launch."""
    operators, runtime = evidence.trace.operators, evidence.trace.runtime
    kernels = len(evidence.trace.kernels)
    scale = np.ones(kernels)
    launch = evidence.device.items_launch[:kernels]
    known = np.flatnonzero(launch >= 0)
    if not len(known):
        return scale
    order = rows[np.argsort(operators.start[rows])]
    moment = runtime.start[launch[known]]
    at = np.searchsorted(operators.start[order], moment, side="right") - 1
    within = (at >= 0) & (moment < operators.end[order[np.maximum(at, 0)]])
    within &= runtime.lane[launch[known]] == operators.lane[order[np.maximum(at, 0)]]
    scale[known[within]] = 0.0
    return scale
