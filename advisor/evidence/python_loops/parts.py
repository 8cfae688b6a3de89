"""Parts of tensors that a loop takes or writes one by one: the backward makes a tensor as large as all for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.by_function import COPIES_PART, Calls, Function
from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import NODE, Part, kernels_left
from advisor.evidence.outside import function_around
from advisor.evidence.python_loops.rounds import is_repeated
from advisor.evidence.steps import assign
from advisor.evidence.whatif import Change
from advisor.evidence.worked import of_tensors, self_shares, spent_s, without
from advisor.harness.indexing import PART

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite

_LEAST_PARTS = 8  # a step: so many make it worth a line
# A loop has to take so many of the parts that there are: unbind makes all of them, and the gradients of those that are
# not taken are zeros. With half of them it has half the work that it could have, which is little beside one whole
# tensor for each.
_LEAST_OF_ALL = 0.5
_TAKEN = "SelectBackward0"


@dataclass(frozen=True)
class Parts:
    """What loops of one function take of tensors, and write into them, part by part: nodes of the backward in a step.

    ``share`` of the step that goes where each tensor has one node for all of its parts, by the ``change``. ``sites``:
    where that is written.
    """

    taken: float
    written: float
    share: float
    change: Change
    sites: tuple[CallSite, ...]


@dataclass(frozen=True)
class _Kind:
    """Parts that are taken, or those that are written: rows of nodes, which part of each goes, and the lines."""

    nodes: list[int]
    goes: float
    per_step: float
    sites: list[CallSite]


def parts_one_by_one(evidence: Evidence, text_of: Callable[[str], str]) -> Parts | None:
    """The function whose parts take most of the backward, by the window with stacks; None where there is none.

    `text_of` gives a file's text, "" where there is none.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return None
    sites: dict[Function, list[CallSite]] = {}
    for each in record.call_sites:
        if each.kind == PART:
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
        written = [calls.name(node).endswith(COPIES_PART) for node in nodes[function]]
        kinds = [
            _kind(
                [node for node, of in zip(nodes[function], written, strict=True) if of == writes],
                [each for each in sites[function] if bool(each.details.get("written")) == writes],
                len(calls.steps),
                text_of,
            )
            for writes in (False, True)
        ]
        if any(kinds):
            return _found(evidence, calls, *kinds)
    return None


def _nodes(calls: Calls) -> dict[int, int]:
    """The backward's nodes of parts that are taken or written → the call that recorded each."""
    operators = calls.trace.operators
    named = names_like(calls.trace, operators.name, _is_of_part)
    rows = np.flatnonzero(named & (operators.sequence >= 0) & (assign(calls.steps, operators.start) >= 0))
    found = {row: calls.recorder(row) for row in rows.tolist()}
    return {row: call for row, call in found.items() if call is not None}


def _is_of_part(name: str) -> bool:
    return name.startswith(NODE) and (name.removeprefix(NODE) == _TAKEN or name.endswith(COPIES_PART))


def _kind(nodes: list[int], sites: list[CallSite], steps: int, text_of: Callable[[str], str]) -> _Kind | None:
    """The part of `nodes` that loops have recorded, as far as these go through most of a tensor's parts.

    Which of the function's lines has recorded a node is not known: each has its share of them by its calls.
    """
    looped = [each for each in sites if is_repeated(text_of(each.site.file), each.site)]
    known = [each for each in looped if not each.details.get("mixed")]
    calls = sum(each.calls for each in known)
    every = sum(int(each.details.get("numbers", each.calls)) for each in sites)  # of x[i, j] there are two nodes
    if not calls or not nodes:
        return None
    size = sum(int(each.details.get("size", 0)) for each in known) / calls
    per_step = len(nodes) / steps * calls / every
    if size <= 1 or per_step < max(_LEAST_PARTS, _LEAST_OF_ALL * size):
        return None
    return _Kind(nodes, calls / every * (1.0 - 1.0 / size), per_step, known)


def _found(evidence: Evidence, calls: Calls, taken: _Kind | None, written: _Kind | None) -> Parts:
    trace, kinds = calls.trace, [each for each in (taken, written) if each is not None]
    part = np.zeros(len(trace.operators))
    for each in kinds:
        part[calls.within(each.nodes)] = each.goes
    in_steps = assign(calls.steps, trace.operators.start) >= 0
    shares = of_tensors(self_shares(trace, calls.nesting, part, in_steps))
    return Parts(
        taken=taken.per_step if taken is not None else 0.0,
        written=written.per_step if written is not None else 0.0,
        share=spent_s(evidence, shares) / (evidence.trace_step_s or 1.0),
        change=_on_gpu(evidence, calls, kinds) if evidence.device_is_gpu else without(evidence, shares),
        sites=tuple(site for each in kinds for site in each.sites),
    )


def _on_gpu(evidence: Evidence, calls: Calls, kinds: list[_Kind]) -> Change:
    """The kernels that the same share of such nodes launches in the window without stacks go."""
    operators = evidence.trace.operators
    parts: dict[int, list[Part]] = {}
    for kind in kinds:
        like = calls.name(kind.nodes[0]).__eq__
        there = names_like(evidence.trace, operators.name, like) & (assign(evidence.steps, operators.start) >= 0)
        rows = np.flatnonzero(there)
        scale = len(kind.nodes) / len(calls.steps) * len(evidence.steps) / max(1, len(rows))
        for row in rows.tolist():
            part = int(operators.start[row]), int(operators.end[row]), min(1.0, scale) * kind.goes
            parts.setdefault(int(operators.lane[row]), []).append(part)
    left: list[NDArray[np.float64]] = [kernels_left(evidence, each, lane) for lane, each in parts.items()]
    return Change(kernel_scale=np.minimum.reduce(left) if left else None)
