"""A layer's weight that is made anew in each forward, of a frozen one and a product of two narrow matrices: W + B @ A.

The product is as large as the weight, it is scaled and added, the layer multiplies by the sum, and the backward
computes the gradient of all of it, only to multiply that by the two narrow matrices. ``x @ W.T + (x @ A.T) @ B.T`` is
the same without anything as large as the weight but the layer's own product. Told by the operators that follow each
other in the window that records their shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import Shape, shapes_at
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_NARROW = 4  # times as many rows and columns as the two matrices have in common, at least
_AFTER = 10  # operators between the product of the narrow matrices and the layer
_PRODUCTS = ("aten::matmul", "aten::mm")
_SUMS = ("aten::add", "aten::add_", "aten::sub")
_SCALES = ("aten::mul", "aten::div", "aten::mul_", "aten::div_")
_ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class LowRank:
    """A weight of ``shape`` (outputs, inputs) that a layer is given for ``rows`` rows, and the ``rank`` of its product.

    ``made_in``, ``used_in``: the function of the user's that multiplies the narrow matrices, and the one that calls
    the layer: (file, first line), 0 outside of all.
    """

    shape: Shape
    rank: int
    rows: int
    made_in: tuple[str, int]
    used_in: tuple[str, int]


@dataclass(frozen=True)
class LowRanks:
    """What was found: times per step; operator → share of its own time that goes; seconds of the layers' own product.

    ``product_s`` is of their forwards, per step of the detail window.
    """

    counts: dict[LowRank, float]
    shares: dict[str, float]
    product_s: float


def low_rank_weights(evidence: Evidence) -> LowRanks | None:
    """Frozen weights that a product of narrow matrices is added to in each forward; None where there are none."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not evidence.trains or not len(trace.operators):
        return None
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    found: list[tuple[list[int], int, Shape, int, int]] = []
    for lane in np.unique(operators.lane[outer]).tolist():
        found += _made(trace, outer[operators.lane[outer] == lane].tolist())
    trained = _accumulated(trace)
    found = [each for each in found if each[2] not in trained and each[2][::-1] not in trained]
    if not found:
        return None
    making = users_functions(trace, np.array([rows[0] for rows, *_ in found]), record)
    using = users_functions(trace, np.array([layer for _, layer, *_ in found]), record)
    counts: dict[LowRank, float] = {}
    gone, product_ns = np.zeros(len(operators), np.bool_), 0.0
    for rows, layer, shape, rank, given in found:
        if rows[0] not in making or layer not in using:
            continue
        each = LowRank(shape, rank, given, making[rows[0]], using[layer])
        counts[each] = counts.get(each, 0.0) + 1 / len(steps)
        gone |= worked(trace, rows)
        whole = worked(trace, [layer])
        gone |= _weights_gradient(trace, whole & back, shape)
        product_ns += float(nesting.self_ns[whole & ~back].sum())
    if not counts:
        return None
    return LowRanks(counts, self_shares(trace, nesting, gone, step >= 0), product_ns / 1e9 / len(steps))


def _made(trace: Trace, rows: list[int]) -> Iterator[tuple[list[int], int, Shape, int, int]]:
    """(what makes the weight, the layer that is given it, the weight's shape, rank, rows that the layer is given)."""
    operators = trace.operators
    names = [trace.name(int(code)) for code in operators.name[rows]]
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        narrow = _narrow(shapes_at(trace, row), name)
        if narrow is None:
            continue
        shape, rank, added = narrow
        making = [row]
        for later in range(at + 1, min(len(rows), at + 1 + _AFTER)):
            shapes = shapes_at(trace, rows[later])
            weights = [each for each in shapes if each in (shape, shape[::-1])]
            if not weights:
                continue
            given = _given(shapes, names[later], shape)
            if added and given:
                yield making, rows[later], given[0], rank, given[1]
                break
            if names[later] in _SUMS and len(weights) == 2:
                added = True
            elif not _is_view(names[later]) and not (names[later] in _SCALES and prod(shapes[-1]) == 1):
                break
            making.append(rows[later])


def _narrow(shapes: list[Shape], name: str) -> tuple[Shape, int, bool] | None:
    """Of a product of two narrow matrices: its shape, what they have in common, and whether it is added to a weight."""
    added = name == "aten::addmm" and len(shapes) > 2
    if not added and name not in _PRODUCTS:
        return None
    left, right = [*(shapes[1:] if added else shapes), (), ()][:2]
    if len(left) != 2 or len(right) != 2:
        return None
    shape, rank = (left[0], right[1]), left[1]
    if rank * _NARROW > min(shape) or (added and shapes[0] != shape):
        return None
    return shape, rank, added


def _given(shapes: list[Shape], name: str, shape: Shape) -> tuple[Shape, int] | None:
    """Of a layer whose weight has that shape, either way round: (outputs, inputs), and its rows."""
    if len(shapes) < 2 or not shapes[0]:
        return None
    given, weight = shapes[0], shapes[1]
    if name == "aten::addmm" and len(shapes) > 2:
        given, weight = shapes[1], shapes[2][::-1]
    elif name in _PRODUCTS:
        weight = weight[::-1]
    elif name != "aten::linear":
        return None
    rows = prod(given[:-1])
    if weight not in (shape, shape[::-1]) or given[-1] != weight[1] or not rows or rows in shape:
        return None  # with as many rows gradients of inputs and of weights are not told apart
    return weight, rows


def _is_view(name: str) -> bool:
    return name in ("aten::t", "aten::transpose", "aten::numpy_T", "aten::view", "aten::reshape", "aten::to")


def _accumulated(trace: Trace) -> set[Shape]:
    """The shapes of the gradients that are added up: of parameters that are trained."""
    rows = np.flatnonzero(names_like(trace, trace.operators.name, _ACCUMULATES.__eq__))
    return {shape for row in rows.tolist() for shape in shapes_at(trace, row)}


def _weights_gradient(trace: Trace, inside: Mask, shape: Shape) -> Mask:
    """Of the operators `inside`, a layer's in the backward: those that compute the gradient of a weight of `shape`."""
    found = np.zeros(len(inside), np.bool_)
    for row in np.flatnonzero(inside & names_like(trace, trace.operators.name, "aten::mm".__eq__)).tolist():
        left, right = [*shapes_at(trace, row), (), ()][:2]
        if len(left) == 2 and len(right) == 2 and (left[0], right[1]) in (shape, shape[::-1]):
            found[row] = True
    return found
