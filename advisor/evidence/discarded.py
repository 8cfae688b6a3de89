"""The part of the backward pass whose gradients nobody uses, amid others that are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.evidence.unused_gradients import GRADIENT

if TYPE_CHECKING:
    from advisor.evidence import Evidence

Part = tuple[int, int, float]  # from, to (ns), and which share of it is for nothing

_NODE = "autograd::engine::evaluate_function: "
# Nodes that compute a weight's gradient beside their input's. A convolution's takes as long as its input's (as many
# multiplications), and both are one operator; a product's is a product of its own, the later one.
_CONVOLUTIONS = ("ConvolutionBackward0",)
_PRODUCTS = ("AddmmBackward0", "MmBackward0", "LinearBackward0")
_WHOLE = ("EmbeddingBackward0",)  # has no other gradient
_PASSED_ON = ("TBackward0",)  # hand a weight's gradient on
_MULTIPLIES = frozenset(("aten::mm", "aten::addmm"))
_OF_A_CONVOLUTION = 0.5


@dataclass(frozen=True)
class DiscardedBackward:
    """Per traced step: the host's seconds that gradients cost which nobody uses, and those of them that whole ends of
    backward passes take (``ends_s``); ``kernel_scale`` is what is left of each row of ``Trace.kernels``."""

    seconds: float
    ends_s: float
    kernel_scale: NDArray[np.float64]


def discarded_backward(evidence: Evidence) -> DiscardedBackward | None:
    """What the gradients cost that the record says nobody uses; None where it says nothing, or the trace is otherwise.

    Two kinds: behind the last gradient of a pass that is used all that is done is for nothing; before that, only the
    products that make the weights' gradients are, and adding those up.
    """
    record, steps, operators = evidence.record, evidence.steps, evidence.trace.operators
    if record is None or not record.accumulated or not len(steps):
        return None
    step_of = assign(steps, operators.start)
    done = np.flatnonzero(names_like(evidence.trace, operators.name, GRADIENT.__eq__) & (step_of >= 0))
    done = done[np.argsort(operators.start[done], kind="stable")]
    dropped, behind = (np.concatenate(each) for each in zip(*map(_flags, record.accumulated), strict=True))
    lanes, counts = np.unique(operators.lane[done]), np.bincount(step_of[done], minlength=len(steps))
    if len(lanes) != 1 or (counts != len(dropped)).any():
        return None
    dropped, behind = (np.tile(each, len(steps)) for each in (dropped, behind))
    ends = [
        (int(operators.end[done[first - 1]]), int(operators.end[done[last]]))
        for first, last in _spans(behind, [sum(each) for each in record.accumulated])
    ]
    parts = _amid(evidence, int(lanes[0]), dict(zip(done.tolist(), dropped.tolist(), strict=True)))
    amid = [each for each in parts if not any(start <= each[0] and each[1] <= end for start, end in ends)]
    behind_ns = sum(end - start for start, end in ends)
    amid_ns = sum((end - start) * share for start, end, share in amid)
    return DiscardedBackward(
        seconds=(behind_ns + amid_ns) / 1e9 / len(steps),
        ends_s=behind_ns / 1e9 / len(steps),
        kernel_scale=_kernel_scale(evidence, [*((start, end, 1.0) for start, end in ends), *amid], int(lanes[0])),
    )


def _flags(runs: list[int]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each gradient of a pass: whether nobody uses it, and whether nobody uses any from it on.

    A pass none of whose gradients is used is not for nothing: what it computes may be read by its inputs.
    """
    flags = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    last = int(np.flatnonzero(~flags)[-1]) if not flags.all() else len(flags)
    return flags, np.arange(len(flags)) > last


def _spans(behind: NDArray[np.bool_], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of the ends of passes of such `sizes`, which repeat."""
    begin = 0
    while begin < len(behind):
        for size in sizes:
            of_pass = np.flatnonzero(behind[begin : begin + size])
            if len(of_pass):
                yield begin + int(of_pass[0]), begin + int(of_pass[-1])
            begin += size


def _amid(evidence: Evidence, lane: int, for_nothing: dict[int, bool]) -> Iterator[Part]:
    """The work that makes the gradients `for_nothing` (rows of operators, whether it is that) and adds them up."""
    trace, operators = evidence.trace, evidence.trace.operators
    rows = np.flatnonzero(names_like(trace, operators.name, lambda name: name.startswith(_NODE)))
    rows = rows[operators.lane[rows] == lane]
    node, handed = -1, -1
    for row in rows[np.argsort(operators.start[rows], kind="stable")].tolist():
        name = trace.name(int(operators.name[row])).removeprefix(_NODE)
        if row in for_nothing:
            if for_nothing[row]:
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
    name = trace.name(int(operators.name[node])).removeprefix(_NODE)
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


def _kernel_scale(evidence: Evidence, parts: list[Part], lane: int) -> NDArray[np.float64]:
    """What is left of each kernel, by where it is launched."""
    kernels, runtime = evidence.trace.kernels, evidence.trace.runtime
    scale = np.ones(len(kernels))
    launch = evidence.device.items_launch[: len(kernels)]
    known = np.flatnonzero(launch >= 0)
    known = known[runtime.lane[launch[known]] == lane]
    moment = runtime.start[launch[known]]
    for start, end, share in parts:
        scale[known[(moment >= start) & (moment < end)]] = 1.0 - share
    return scale
