"""The part of the backward pass whose gradients nobody uses, amid others that are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.gradients.backwards import NODE, Part, backward_calls, kernels_left
from advisor.evidence.gradients.unused_gradients import GRADIENT, UnusedBackward
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.intervals import Ints

# Nodes that compute a weight's gradient beside their input's. A convolution's takes as long as its input's (as many
# multiplications), and both are one operator; a product's is a product of its own, the later one.
_CONVOLUTIONS = ("ConvolutionBackward0",)
_PRODUCTS = ("AddmmBackward0", "MmBackward0", "LinearBackward0", "BmmBackward0", "BaddbmmBackward0")
_WHOLE = ("EmbeddingBackward0",)  # has no other gradient
_PASSED_ON = ("TBackward0",)  # hand a weight's gradient on
_MULTIPLIES = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"))
_OF_A_CONVOLUTION = 0.5
_MUCH = 0.25  # of it


@dataclass(frozen=True)
class DiscardedBackward:
    """What gradients cost that nobody uses: the host's seconds per traced step, and what is left of each row of
    ``Trace.kernels``."""

    seconds: float
    kernel_scale: NDArray[np.float64]


def discarded_backward(evidence: Evidence) -> DiscardedBackward | None:
    """What the gradients cost that the record says nobody uses; None where it says nothing, or the trace is otherwise.

    Two kinds (:class:`advisor.harness.layout.GradientRun`): of a branch all that is done is for nothing; elsewhere only
    the products that make the weights' gradients are, and adding those up. Where one part of the graph leads to the
    same weights as another one does, but to nothing else (a target that goes through a frozen network, too), its nodes
    are for nothing as well.
    """
    record, steps, operators = evidence.record, evidence.steps, evidence.trace.operators
    if record is None or not record.accumulated or not len(steps):
        return None
    step_of = assign(steps, operators.start)
    done = np.flatnonzero(names_like(evidence.trace, operators.name, GRADIENT.__eq__) & (step_of >= 0))
    done = done[np.argsort(operators.start[done], kind="stable")]
    passes = [[run.kind for run in runs for _ in range(run.count)] for runs in record.accumulated]
    done, passes = _with_others(evidence, done, passes)
    kinds = [kind for each in passes for kind in each]
    lanes, counts = np.unique(operators.lane[done]), np.bincount(step_of[done], minlength=len(steps))
    if len(lanes) != 1 or (counts != len(kinds)).any():
        return None
    nodes = _nodes(evidence, int(lanes[0]))
    kind_of = dict(zip(done.tolist(), kinds * len(steps), strict=True))
    parts = _merged(
        [*_branches(evidence, done, nodes, passes), *_lost(evidence, nodes), *_weights(evidence, nodes, kind_of)]
    )
    return DiscardedBackward(
        seconds=sum((end - start) * share for start, end, share in parts) / 1e9 / len(steps),
        kernel_scale=kernels_left(evidence, parts, int(lanes[0])),
    )


def at_the_end(unused: UnusedBackward, discarded: DiscardedBackward) -> bool:
    """Whether much of what is computed for nothing comes after the last gradient that is used, and may just end."""
    return unused.seconds >= _MUCH * discarded.seconds


def _with_others(evidence: Evidence, done: Ints, passes: list[list[str]]) -> tuple[Ints, list[list[str]]]:
    """The gradients `done` in the script's calls of ``backward``, and the `passes` with those that are no parameter's.

    A gradient penalty differentiates by its images, too: ``torch.autograd.grad`` comes to them, and so does the
    penalty's own backward. They are used; where a pass has others than used ones nothing may be amiss.
    """
    operators, steps = evidence.trace.operators, len(evidence.steps)
    begin, end = backward_calls(evidence)
    if not passes or len(begin) != len(passes) * steps:
        return done, passes
    call = np.searchsorted(begin, operators.start[done], side="right") - 1
    inside = (call >= 0) & (operators.start[done] < end[np.maximum(call, 0)])
    counts = np.bincount(call[inside], minlength=len(begin)).reshape(steps, len(passes))
    more = counts[0] - [len(each) for each in passes]
    used = [set(each) <= {"used"} for each in passes]
    if (counts != counts[0]).any() or (more < 0).any() or any(more[i] and not used[i] for i in range(len(passes))):
        return done, passes
    return done[inside], [each + ["used"] * int(count) for each, count in zip(passes, more.tolist(), strict=True)]


def _nodes(evidence: Evidence, lane: int) -> Ints:
    """The rows of operators that are autograd's nodes, in the order of time."""
    trace, operators = evidence.trace, evidence.trace.operators
    rows = np.flatnonzero(names_like(trace, operators.name, lambda name: name.startswith(NODE)))
    rows = rows[operators.lane[rows] == lane]
    sorted_rows: Ints = rows[np.argsort(operators.start[rows], kind="stable")]
    return sorted_rows


def _merged(parts: list[Part]) -> list[Part]:
    """The parts that are wholly for nothing as intervals that do not overlap, and of the others what lies outside."""
    whole = Coverage.of(*(np.array([part[at] for part in parts if part[2] == 1.0], np.int64) for at in (0, 1)))
    found = [(start, end, 1.0) for start, end in zip(whole.start.tolist(), whole.end.tolist(), strict=True)]
    partly = dict.fromkeys(part for part in parts if part[2] < 1.0)
    return found + [part for part in partly if not whole.contains(np.array([part[0]]))[0]]


def _lost(evidence: Evidence, nodes: Ints) -> Iterator[Part]:
    """What the record says of the nodes leads to nothing that is used, by the order in which the forward made them."""
    record, trace, steps = evidence.record, evidence.trace, evidence.steps
    told = record.backward_nodes if record is not None else []
    operators = trace.operators
    begin, end = backward_calls(evidence)
    if not any(told) or len(begin) != len(told) * len(steps):
        return
    nodes = nodes[operators.sequence[nodes] >= 0]
    nodes = nodes[~names_like(trace, operators.name[nodes], GRADIENT.__eq__)]
    for number, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        kinds = [run.kind for run in told[number % len(told)] for _ in range(run.count)]
        inside = nodes[(operators.start[nodes] >= start) & (operators.start[nodes] < stop)]
        if not kinds or len(inside) != len(kinds):
            continue
        inside = inside[np.argsort(operators.sequence[inside], kind="stable")]
        for row, kind in zip(inside.tolist(), kinds, strict=True):
            if kind == "branch":
                yield int(operators.start[row]), int(operators.end[row]), 1.0
            elif kind == "weights":  # of a weight that is used several times: it is added up once, after all of them
                yield from _making(evidence, row)


def _branches(evidence: Evidence, done: Ints, nodes: Ints, passes: list[list[str]]) -> Iterator[Part]:
    """From where a branch begins, to where the last of its gradients is done."""
    operators = evidence.trace.operators
    begin = 0
    while begin < len(done):
        for kinds in passes:
            for first, kind in enumerate(kinds):
                if kind != "branch" or (first and kinds[first - 1] == "branch"):
                    continue
                last = first
                while last + 1 < len(kinds) and kinds[last + 1] == "branch":
                    last += 1
                start = operators.end[done[begin + first - 1]] if first else _made_by(evidence, nodes, done[begin])
                yield int(start), int(operators.end[done[begin + last]]), 1.0
            begin += len(kinds)


def _made_by(evidence: Evidence, nodes: Ints, row: int) -> int:
    """When the node begins that makes a gradient."""
    trace, operators = evidence.trace, evidence.trace.operators
    at = int(np.searchsorted(operators.start[nodes], operators.start[row], side="left")) - 1
    while at > 0 and trace.name(int(operators.name[nodes[at]])).removeprefix(NODE) in _PASSED_ON:
        at -= 1
    return int(operators.start[nodes[at]]) if at >= 0 else int(operators.start[row])


def _weights(evidence: Evidence, nodes: Ints, kinds: dict[int, str]) -> Iterator[Part]:
    """The work that makes the gradients of the kind "weights" and adds them up; `kinds` by their rows of operators."""
    trace, operators = evidence.trace, evidence.trace.operators
    node, handed = -1, -1
    for row in nodes.tolist():
        name = trace.name(int(operators.name[row])).removeprefix(NODE)
        if row in kinds:
            if kinds[row] == "weights":
                yield int(operators.start[row]), int(operators.end[row]), 1.0
                if node >= 0:
                    yield from _making(evidence, node)
                    node = -1
                if handed >= 0:
                    yield int(operators.start[handed]), int(operators.end[handed]), 1.0
            handed = -1
        elif name in _PASSED_ON:
            handed = row
        else:
            node, handed = row, -1


def _making(evidence: Evidence, node: int) -> Iterator[Part]:
    """What of an autograd node makes the gradient of a weight."""
    trace, operators = evidence.trace, evidence.trace.operators
    name = trace.name(int(operators.name[node])).removeprefix(NODE)
    start, end = int(operators.start[node]), int(operators.end[node])
    if name in _WHOLE:
        yield start, end, 1.0
    elif name in _CONVOLUTIONS:
        yield start, end, _OF_A_CONVOLUTION
    elif name in _PRODUCTS:
        inside = (operators.start >= start) & (operators.end <= end) & (operators.lane == operators.lane[node])
        found = [row for row in np.flatnonzero(inside).tolist() if trace.name(int(operators.name[row])) in _MULTIPLIES]
        if found:
            last = max(found, key=lambda row: int(operators.start[row]))
            yield int(operators.start[last]), end, 1.0
