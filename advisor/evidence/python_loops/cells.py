"""LSTM cells that a step calls again and again, or an LSTM that it gives one element at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import NODE
from advisor.evidence.shapes import input_shapes
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.coded import Mask
    from advisor.trace.tables import Trace

_CELL, _WHOLE, _LAYER = "aten::lstm_cell", "aten::lstm", "aten::mkldnn_rnn_layer"
_NEARLY_ALL = 0.9  # of an LSTM's calls are given one element
# What takes an element out of the sequence, or puts the states together: gone, too, with the loop.
_TAKES = ("SelectBackward", "UnbindBackward", "StackBackward")
_TAKEN = frozenset(("aten::select", "aten::unbind", "aten::stack"))


@dataclass(frozen=True)
class Cells:
    """Means over the steps; seconds as traced, with what takes elements out of the sequence and the Python between.

    ``round_s``: what else is done between the first of them and the last, in the forward and in the backward.
    ``sizes``: (calls, rows, inputs of a row, width of its state) for each of the cells.
    """

    calls: float
    forward_s: float
    backward_s: float
    sizes: tuple[tuple[float, int, int, int], ...]
    round_s: float = 0.0


def lstm_cells(evidence: Evidence) -> Cells | None:
    """The calls of cells in a step; None where there are none, or the window with shapes does not have them."""
    trace, steps, detail = evidence.trace, evidence.steps, evidence.detail
    if detail is None or not len(steps):
        return None
    operators = trace.operators
    within = assign(steps, operators.start) >= 0
    kinds = ((_CELL, _sizes(detail)), (_WHOLE, _layers(detail)))
    found = ((_named(trace, name) & within, sizes) for name, sizes in kinds)
    called, sizes = next((each for each in found if each[0].any() and each[1]), (within, ()))
    if not sizes:
        return None
    outer = evidence.nesting.parent < 0
    nodes = names_like(trace, operators.name, lambda name: name.startswith(NODE)) & outer
    taken = names_like(trace, operators.name, _TAKEN.__contains__) & outer
    forward_s, other_s = _stretches_s(evidence, called, taken, outer & ~nodes)
    backward_s, behind_s = _stretches_s(evidence, *_backward(evidence, called, nodes), nodes)
    return Cells(float(called.sum()) / len(steps), forward_s, backward_s, sizes, other_s + behind_s)


def _named(trace: Trace, name: str) -> Mask:
    return names_like(trace, trace.operators.name, name.__eq__)


def _sizes(detail: Trace) -> tuple[tuple[float, int, int, int], ...]:
    """Calls of a step by their sizes: of an input ``(rows, inputs)`` and weights ``(4 * width, width)``."""
    steps = step_windows(detail)
    inside = _named(detail, _CELL) & (assign(steps, detail.operators.start) >= 0)
    found = []
    for code, count in zip(*np.unique(detail.operators.shapes[inside], return_counts=True), strict=True):
        shapes = [each for each in input_shapes(detail.name(int(code)) if code >= 0 else "") if len(each) == 2]
        if len(shapes) >= 3:  # the input and the two weights, of which the second takes the state
            found.append((int(count) / len(steps), *shapes[0], shapes[-1][1]))
    return tuple(found)


def _layers(detail: Trace) -> tuple[tuple[float, int, int, int], ...]:
    """The same of an LSTM's layers, whose input is ``(elements, rows, inputs)``; nothing where they get sequences."""
    steps = step_windows(detail)
    inside = _named(detail, _LAYER) & (assign(steps, detail.operators.start) >= 0)
    found, whole = [], 0.0
    for code, count in zip(*np.unique(detail.operators.shapes[inside], return_counts=True), strict=True):
        shapes = input_shapes(detail.name(int(code)) if code >= 0 else "")
        if len(shapes) >= 3 and len(shapes[0]) == 3 and len(shapes[2]) == 2 and shapes[0][0] == 1:
            found.append((int(count) / len(steps), *shapes[0][1:], shapes[2][1]))
        else:
            whole += int(count) / len(steps)
    alone = sum(count for count, *_ in found)
    return tuple(found) if alone >= _NEARLY_ALL * (alone + whole) else ()


def _backward(evidence: Evidence, called: Mask, nodes: Mask) -> tuple[Mask, Mask]:
    """The `nodes` of the backward for what the cells computed, and those for elements that were taken out."""
    trace, operators = evidence.trace, evidence.trace.operators
    of_cells = called[evidence.nesting.outermost] & (operators.sequence >= 0)
    numbers = np.unique(operators.sequence[of_cells])
    taken = names_like(trace, operators.name, lambda name: name.removeprefix(NODE).startswith(_TAKES))
    return nodes & np.isin(operators.sequence, numbers), nodes & taken


def _stretches_s(evidence: Evidence, cells: Mask, taken: Mask, everything: Mask) -> tuple[float, float]:
    """Seconds per step in `cells` and `taken`, from the first cell to the last, and between them; and in others.

    Of the time between operators as large a part as the part of the operators that are theirs.
    """
    operators, steps = evidence.trace.operators, evidence.steps
    step = assign(steps, operators.start)
    lane = np.isin(operators.lane, operators.lane[cells])
    total = others = 0.0
    for number in range(len(steps)):
        mine = np.flatnonzero(cells & (step == number))
        if not len(mine):
            continue
        begin, end = int(operators.start[mine].min()), int(operators.end[mine].max())
        rows = np.flatnonzero(everything & lane & (operators.start >= begin) & (operators.end <= end))
        took = operators.end[rows] - operators.start[rows]
        own = (cells | taken)[rows]
        between = max(0, end - begin - int(took.sum()))
        mine_ns = float(took[own].sum()) + between * float(own.mean())
        total, others = total + mine_ns, others + (end - begin) - mine_ns
    return total / 1e9 / len(steps), others / 1e9 / len(steps)
