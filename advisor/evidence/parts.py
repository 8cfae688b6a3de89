"""Parts of tensors that a loop takes or writes one by one: the backward makes a tensor as large as all for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.by_function import COPIES_PART, Calls, Function
from advisor.evidence.coded import names_like
from advisor.evidence.outside import function_around
from advisor.evidence.steps import assign
from advisor.evidence.worked import NODE, self_shares
from advisor.harness.indexing import PART
from advisor.harness.layout import CallSite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints

LEAST_PARTS = 8  # a step: so many make it a loop
# Of a tensor's parts these have to be taken, for to take it apart whole is no waste.
_MOST_OF_ALL = 0.5


@dataclass(frozen=True)
class Parts:
    """What one function takes of tensors, and writes into them, part by part: nodes of the backward in a step.

    ``shares``: operator → share of its own time in the steps that goes where each tensor has one node for all of its
    parts. ``sites``: where that is written.
    """

    function: Function
    taken: float
    written: float
    shares: dict[str, float]
    sites: tuple[CallSite, ...]


def parts_one_by_one(evidence: Evidence) -> Parts | None:
    """The function whose parts take most of the backward, by the window with stacks; None where there is none."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return None
    sites: dict[Function, list[CallSite]] = {}
    for each in record.call_sites:
        if each.kind == PART and not each.details.get("mixed"):
            file, line = each.site.file, each.site.line
            sites.setdefault((file, function_around(file, line)), []).append(each)
    if not sites:
        return None
    calls = Calls(trace)
    recorded = _nodes(calls)
    functions = calls.functions(evidence, set(recorded.values()))
    nodes: dict[Function, list[int]] = {}
    for node, call in recorded.items():
        if functions.get(call) in sites:
            nodes.setdefault(functions[call], []).append(node)
    lasted = {each: sum(map(calls.lasted_ns, rows)) for each, rows in nodes.items()}
    for function in sorted(nodes, key=lambda each: -lasted[each]):
        found = _found(calls, function, nodes[function], sites[function])
        if found is not None:
            return found
    return None


def _nodes(calls: Calls) -> dict[int, int]:
    """The backward's nodes of parts that are taken or written → the call that recorded each."""
    trace = calls.trace
    operators = trace.operators
    named = names_like(trace, operators.name, lambda name: name.startswith(NODE) and name.endswith(_KINDS))
    rows = np.flatnonzero(named & (operators.sequence >= 0) & (assign(calls.steps, operators.start) >= 0))
    found = {row: calls.recorder(row) for row in rows.tolist()}
    return {row: call for row, call in found.items() if call is not None}


_KINDS = ("SelectBackward0", COPIES_PART)


def _found(calls: Calls, function: Function, nodes: list[int], sites: list[CallSite]) -> Parts | None:
    steps = len(calls.steps)
    by_kind = Counter(calls.name(node).endswith(COPIES_PART) for node in nodes)
    # How often a loop went through the whole of a tensor is not known; what is not taken would be parts for nothing.
    known: list[CallSite] = []
    left: dict[bool, float] = {}
    for written in (False, True):
        own = [each for each in sites if bool(each.details.get("written")) == written]
        size = max((int(each.details.get("size", 0)) for each in own), default=0)
        count = by_kind[written] / steps
        if count >= max(LEAST_PARTS, _MOST_OF_ALL * size) and size > 1:
            known += own
            left[written] = 1.0 / size
    if not known:
        return None
    trace, part = calls.trace, np.zeros(len(calls.trace.operators))
    for written, stays in left.items():
        those = [each for each in nodes if calls.name(each).endswith(COPIES_PART) == written]
        _mark(calls, np.array(those, np.int64), 1.0 - stays, part)
    return Parts(
        function=function,
        taken=by_kind[False] / steps if False in left else 0.0,
        written=by_kind[True] / steps if True in left else 0.0,
        shares=self_shares(trace, calls.nesting, part, assign(calls.steps, trace.operators.start) >= 0),
        sites=tuple(known),
    )


def _mark(calls: Calls, nodes: Ints, goes: float, part: NDArray[np.float64]) -> None:
    """Have the nodes and all that they call go, to that part."""
    operators = calls.trace.operators
    for lane in np.unique(operators.lane[nodes]).tolist():
        own = nodes[operators.lane[nodes] == lane]
        own = own[np.argsort(operators.start[own], kind="stable")]
        rows = np.flatnonzero(operators.lane == lane)
        at = np.searchsorted(operators.start[own], operators.start[rows], side="right") - 1
        inside = rows[(at >= 0) & (operators.end[rows] <= operators.end[own[np.maximum(at, 0)]])]
        part[inside] = goes
