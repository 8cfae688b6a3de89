"""Embedding tables with dense gradients: what a step does to whole tables of which it looks up a few rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, for_names, names_like
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

# (weight, indices, …) and (gradient, indices, …): native_functions.yaml.
_LOOKUPS = ("aten::embedding", "aten::_embedding_bag")
_GRADIENTS = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_OF_LISTS = ("aten::_fused_", "aten::_foreach_")
_LOOKING_UP = ("aten::embedding", "aten::embedding_bag", "aten::_embedding_bag")  # with all that they call
_NO_USE = ("aten::detach", "detach")


@dataclass(frozen=True)
class Tables:
    """Tables of one shape, (`rows`, `width`): at most `number` of them. `lookups`: rows that a step reads of them all,
    repeated ones counted each time; `gradients`: how many of a table's size it makes.
    """

    rows: int
    width: int
    number: int
    lookups: float
    gradients: float

    @property
    def elements(self) -> int:
        """Of all of them."""
        return self.number * self.rows * self.width


def dense_tables(evidence: Evidence) -> list[Tables]:
    """The tables whose gradients are as large as they are, by the window with shapes; the largest first.

    Without those that the forward uses for something else, too, as the weights of its last layer: their gradients are
    dense whatever the lookups' are.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return []
    steps = step_windows(trace)
    inside = assign(steps, trace.operators.start) >= 0
    gradients = Counter({(shape[-1], where): n for (shape, where), n in _pairs(trace, inside, _GRADIENTS).items()})
    seen = _pairs(trace, inside, _LOOKUPS)
    asked = Counter[tuple[int, Shape]]()
    for (shape, where), number in seen.items():
        asked[shape[-1], where] += number
    used = _used_otherwise(trace, Host(trace, steps), inside & ~_looking_up(trace, Nesting(trace)))
    parameters = sum(model.parameters for model in record.models)
    found: dict[Shape, tuple[int, int]] = {}
    for (shape, where), number in seen.items():
        # As many gradients as lookups, or nobody knows which of two tables of one width is trained.
        if len(shape) == 2 and shape not in used and gradients[shape[-1], where] == asked[shape[-1], where]:
            calls, rows = found.get(shape, (0, 0))
            found[shape] = calls + number, rows + number * prod(where)
    tables = []
    for (rows, width), (calls, looked_up) in found.items():
        most = parameters // (rows * width)
        number = min(round(calls / len(steps)), most)
        if number >= 1:
            tables.append(Tables(rows, width, number, looked_up / len(steps), calls / len(steps)))
    return sorted(tables, key=lambda each: -each.elements)


def other_lookups(evidence: Evidence, tables: list[Tables]) -> tuple[float, float, float] | None:
    """(lookups, rows, numbers) per step of tables that are none of `tables`; None without shapes."""
    trace = evidence.detail
    if trace is None or not len(trace.operators):
        return None
    steps = step_windows(trace)
    inside = assign(steps, trace.operators.start) >= 0
    known = {(each.rows, each.width) for each in tables}
    pairs = _pairs(trace, inside, _LOOKUPS).items()
    found = [(count, count * prod(where), table[-1]) for (table, where), count in pairs if table not in known]
    lookups, rows = sum(count for count, _, _ in found), sum(rows for _, rows, _ in found)
    numbers, each = sum(rows * width for _, rows, width in found), max(1, len(steps))
    return lookups / each, rows / each, numbers / each


def dense_work(evidence: Evidence, tables: list[Tables]) -> dict[str, float]:
    """Operator → share of its own time, in the window with shapes, that goes over whole `tables`.

    Making their gradients, with all that this calls; whatever is given a tensor of their shape (the optimizer's
    operators, clipping, clearing), lookups aside; of operators on lists of tensors as large a part as the tables are of
    all parameters.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}
    operators, nesting = trace.operators, Nesting(trace)
    inside = assign(step_windows(trace), operators.start) >= 0
    shapes = {(each.rows, each.width) for each in tables}
    widths = {each.width for each in tables}

    def makes_gradient(written: str) -> bool:
        given = input_shapes(written)
        return bool(given and given[0]) and given[0][-1] in widths

    made = names_like(trace, operators.name, _GRADIENTS.__contains__)
    made &= for_names(trace, operators.shapes, makes_gradient, np.bool_)
    whole = for_names(trace, operators.shapes, lambda each: not shapes.isdisjoint(input_shapes(each)), np.bool_)
    whole &= ~names_like(trace, operators.name, _NO_USE.__contains__) & ~_looking_up(trace, nesting)
    part = (inside & (whole | _within(nesting, made))).astype(np.float64)
    of_lists = names_like(trace, operators.name, lambda name: name.startswith(_OF_LISTS))
    all_parameters = max(1, sum(model.parameters for model in record.models))
    part[inside & of_lists] = min(1.0, sum(each.elements for each in tables) / all_parameters)
    on = np.bincount(operators.name, weights=nesting.self_ns * part, minlength=len(trace.names))
    everything = np.bincount(operators.name[inside], weights=nesting.self_ns[inside], minlength=len(trace.names))
    return {trace.name(int(code)): float(on[code] / everything[code]) for code in np.flatnonzero(on)}


def _looking_up(trace: Trace, nesting: Nesting) -> Mask:
    return _within(nesting, names_like(trace, trace.operators.name, _LOOKING_UP.__contains__))


def _within(nesting: Nesting, rows: Mask) -> Mask:
    """The rows, and all operators that they call."""
    found = rows
    while True:
        more = found | ((nesting.parent >= 0) & found[nesting.parent])
        if (more == found).all():
            return found
        found = more


def _pairs(trace: Trace, inside: Mask, names: tuple[str, ...]) -> Counter[tuple[Shape, Shape]]:
    """Calls of these operators by the shapes of their first two inputs."""
    rows = inside & names_like(trace, trace.operators.name, names.__contains__)
    codes, counts = np.unique(trace.operators.shapes[rows], return_counts=True)
    found = Counter[tuple[Shape, Shape]]()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        given = input_shapes(trace.name(code)) if code >= 0 else []
        if len(given) >= 2 and given[0]:
            found[given[0], given[1]] += count
    return found


def _used_otherwise(trace: Trace, host: Host, inside: Mask) -> set[Shape]:
    """Shapes of two dimensions that anything in the forward but a lookup is given, and those transposed."""
    operators = trace.operators
    rows = inside & host.differentiated.union(host.forward).contains(operators.start)
    rows &= ~host.backward.contains(operators.start)
    rows &= ~names_like(trace, operators.name, _NO_USE.__contains__)
    found = set[Shape]()
    for code in np.unique(operators.shapes[rows]).tolist():
        for shape in input_shapes(trace.name(code)) if code >= 0 else []:
            if len(shape) == 2:
                found |= {shape, shape[::-1]}
    return found
