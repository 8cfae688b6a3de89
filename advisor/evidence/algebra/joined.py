"""Pairs of rows joined column by column and given to a linear layer: ``layer(torch.cat([x_i, y_j], -1))``.

Each row is copied as often as it has partners, and the layer multiplies every copy: what it makes of ``x_i`` and of
``y_j`` alone, once for each row, added for each pair, is the same. Told by the operators that follow each other in the
window that records their shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_COPIES = ("aten::expand", "aten::repeat", "aten::repeat_interleave")
_LAYERS = ("aten::linear", "aten::matmul")
_LEAST_COPIES = 8  # of each row: from fewer a layer has little less to do
_BEFORE, _AFTER = 12, 4  # operators before the joining that copy rows, and after it until the layer
# The same numbers in another shape, between the joining and the layer.
_VIEWS = {f"aten::{name}" for name in ("view", "reshape", "contiguous", "flatten", "squeeze", "unsqueeze")}


@dataclass(frozen=True)
class JoinedPairs:
    """Tensors of ``shape`` in which all columns are copies of rows; ``columns`` are what the layer makes of them.

    ``joined_in`` is the function of the user's that joins them: (file, first line), 0 outside of all. ``copies``: how
    many there are of a row, at least.
    """

    shape: Shape
    columns: int
    copies: int
    joined_in: tuple[str, int]


def joined_pairs(evidence: Evidence) -> tuple[dict[JoinedPairs, float], dict[str, float]]:
    """What is joined: times per step; operator → share of its own time that is spent on it, the backward's included."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    found: list[tuple[list[int], Shape, int, int]] = []
    for lane in np.unique(operators.lane[outer]).tolist():
        found += _joinings(trace, outer[operators.lane[outer] == lane].tolist())
    if not found:
        return {}, {}
    places = users_functions(trace, np.array([rows[-2] for rows, *_ in found]), record)
    counts: dict[JoinedPairs, float] = {}
    over = np.zeros(len(operators), np.bool_)
    for rows, shape, columns, copies in found:
        if rows[-2] in places:
            each = JoinedPairs(shape, columns, copies, places[rows[-2]])
            counts[each] = counts.get(each, 0.0) + 1 / len(steps)
            over |= worked(trace, rows)
    return counts, self_shares(trace, nesting, over, step >= 0)


def _joinings(trace: Trace, rows: list[int]) -> Iterator[tuple[list[int], Shape, int, int]]:
    """(what copies rows, the joining, the layer; the joined shape; the layer's columns; copies of a row, at least)."""
    operators = trace.operators
    names = [trace.name(int(code)) for code in operators.name[rows]]
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        parts = _parts(trace, row) if name == "aten::cat" else []
        if len(parts) < 2 or len({each[:-1] for each in parts}) > 1 or len(parts[0]) < 2:
            continue
        shape = (*parts[0][:-1], sum(each[-1] for each in parts))
        layer = _layer(trace, rows[at + 1 : at + 1 + _AFTER], shape)
        if layer is None:
            continue
        copying: list[int] = []
        copies = prod(shape)
        for part in parts:
            for earlier in range(at - 1, max(-1, at - 1 - _BEFORE), -1):
                times = _times(trace, rows[earlier], names[earlier], part)
                if rows[earlier] not in copying and times >= _LEAST_COPIES:
                    copying.append(rows[earlier])
                    copies = min(copies, times)
                    break
        if len(copying) == len(parts):
            yield [*copying, row, layer[0]], shape, layer[1], copies


def _parts(trace: Trace, row: int) -> list[Shape]:
    """The shapes that are joined, by their last dimension; nothing where it is another one."""
    operators = trace.operators
    if operators.shapes[row] < 0 or operators.values is None or operators.values[row] < 0:
        return []
    try:
        tensors, *_ = json.loads(trace.name(int(operators.shapes[row])))
        _, dim, *_ = json.loads(trace.name(int(operators.values[row])))
        parts = [tuple(int(size) for size in each) for each in tensors]
        dim = int(dim)
    except (ValueError, TypeError, RecursionError):
        return []
    return parts if all(len(each) and dim in (-1, len(each) - 1) for each in parts) else []


def _layer(trace: Trace, rows: list[int], joined: Shape) -> tuple[int, int] | None:
    """The linear layer that is given what was joined, and the columns that it makes of it."""
    for row in rows:
        name, code = trace.name(int(trace.operators.name[row])), int(trace.operators.shapes[row])
        shapes = input_shapes(trace.name(code)) if code >= 0 else []
        given = bool(shapes) and len(shapes[0]) > 1 and shapes[0][-1] == joined[-1] and prod(shapes[0]) == prod(joined)
        if name in _LAYERS and given and len(shapes) > 1 and len(shapes[1]) == 2:
            return row, shapes[1][0 if name == _LAYERS[0] else 1]
        if not given or name not in _VIEWS:
            return None
    return None


def _times(trace: Trace, row: int, name: str, part: Shape) -> int:
    """How often this operator copies each row into a tensor of that shape; 0 for one that does not."""
    code = int(trace.operators.shapes[row])
    if name not in _COPIES or code < 0:
        return 0
    given = (input_shapes(trace.name(code)) or [()])[0]
    if not given or not prod(given) or given[-1] != part[-1] or prod(part) % prod(given):
        return 0
    if name == _COPIES[0]:
        behind = zip(given[::-1], part[::-1], strict=False)
        if len(given) > len(part) or not all(size in (1, whole) for size, whole in behind):
            return 0
    return prod(part) // prod(given)
