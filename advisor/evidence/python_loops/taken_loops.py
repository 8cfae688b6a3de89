"""A loop over parts of tensors by where the source has it, however different its rounds are."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from advisor.evidence.bindings import last_name
from advisor.evidence.coded import names_like
from advisor.evidence.host import Host
from advisor.evidence.outside import function_around, users_functions
from advisor.evidence.python_loops.loops import LEAST_ROUNDS, SampleLoop, loop_between
from advisor.evidence.python_loops.rounds import (
    TRAINS,
    Loop,
    calls_its_own,
    independent,
    line_of,
    loop_over_parts,
    outer_loop,
)
from advisor.evidence.steps import assign, step_windows
from advisor.harness.indexing import KIND, PART

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

_TAKES = ("aten::select", "aten::index")
_MOST_OTHERS = 0.2  # of what a function takes of tensors, outside of the loop: it is told by the function
# What was found of a run: several rules ask.
_known: WeakKeyDictionary[Evidence, tuple[SampleLoop, Site] | None] = WeakKeyDictionary()


def taken_loop(evidence: Evidence, text_of: Callable[[str], str]) -> tuple[SampleLoop, Site] | None:
    """The loop that takes most parts of tensors by number, where no round needs another: what it costs, and its line.

    The operators that take them are those of the loop's function, and the loop goes from the first of a run of them to
    the last. None where the function takes parts elsewhere, too. `text_of` gives a file's text, "" where there is none.
    """
    if evidence not in _known:
        _known[evidence] = _longest(evidence, text_of)
    return _known[evidence]


def _longest(evidence: Evidence, text_of: Callable[[str], str]) -> tuple[SampleLoop, Site] | None:
    record, detail = evidence.record, evidence.detail
    if record is None or detail is None or not len(detail.operators):
        return None
    taken = [each for each in record.call_sites if each.kind == KIND and not each.details.get("iterates")]
    known = [each.site for each in taken]
    taken += [each for each in record.call_sites if each.kind == PART and each.site not in known]  # x[:, i]
    loops: dict[tuple[str, int], list[tuple[CallSite, Loop]]] = {}
    for each in taken:
        found = loop_over_parts(text_of(each.site.file), each.site.line)
        if found is not None:
            loops.setdefault((each.site.file, line_of(found[1])), []).append((each, found[1]))
    for (file, line), inside in sorted(loops.items(), key=lambda each: -sum(site.calls for site, _ in each[1])):
        text, loop = text_of(file), inside[0][1]
        if calls_its_own(loop) or not independent(text, loop):
            continue
        function = function_around(file, line)
        own = [each for each in taken if each.site.file == file and function_around(file, each.site.line) == function]
        of_loop = sum(_numbers(text, each) * each.calls for each, _ in inside)
        of_all = sum(_numbers(text, each) * each.calls for each in own)
        if of_loop < (1.0 - _MOST_OTHERS) * of_all:
            continue
        each_round = of_loop / max(each.calls for each, _ in inside)
        measured = _measured(evidence, (file, function), each_round, _is_begun_anew(text, loop))
        if measured is not None:
            site = replace(inside[0][0].site, line=line, column=None, end_line=None, end_column=None)
            return measured, site
    return None


def at_once_s(evidence: Evidence, found: SampleLoop) -> float:
    """Seconds of a step that go where one round does what all do now."""
    spent = (found.forward_s + found.backward_s) / evidence.inflation
    return spent * (1.0 - found.work_share) * (1.0 - found.times / found.rounds)


def _is_begun_anew(text: str, loop: Loop) -> bool:
    """Whether a loop around it, whose rounds need one another, runs it each time anew; one over the steps aside."""
    outer = outer_loop(text, loop)
    if outer is None or any(isinstance(each, ast.Call) and last_name(each.func) in TRAINS for each in ast.walk(outer)):
        return False
    return not (isinstance(outer, ast.For) and independent(text, outer) and not calls_its_own(outer))


def _numbers(text: str, taken: CallSite) -> int:
    """How many numbers stand in the index there: each takes a part of what the one before has taken."""
    place = (taken.site.line, taken.site.column)
    there = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Subscript))
    keys = [
        each.slice.elts if isinstance(each.slice, ast.Tuple) else [each.slice]
        for each in there
        if (each.lineno, each.col_offset) == place
    ]
    return max((sum(map(_is_number, each)) for each in keys), default=0) or 1


def _is_number(key: ast.expr) -> bool:
    """Whether it may be one: no slice, None, or three dots."""
    return not isinstance(key, (ast.Slice, ast.Constant)) or (isinstance(key, ast.Constant) and type(key.value) is int)


def _measured(evidence: Evidence, function: tuple[str, int], each_round: float, again: bool) -> SampleLoop | None:
    detail, record = evidence.detail, evidence.record
    if detail is None or record is None:
        return None
    operators, steps = detail.operators, step_windows(detail)
    takes = names_like(detail, operators.name, _TAKES.__contains__) & (operators.lane == steps.lane)
    rows = np.flatnonzero(takes & (assign(steps, operators.start) >= 0))
    rows = rows[~Host(detail, steps).backward.contains(operators.start[rows])]
    functions = users_functions(detail, rows, record)
    own = np.array([row for row in rows.tolist() if functions.get(row) == function], np.int64)
    if len(own) < LEAST_ROUNDS * each_round * len(steps):
        return None
    return loop_between(evidence.trace, evidence.steps, evidence.host, evidence.nesting, detail, own, each_round, again)
