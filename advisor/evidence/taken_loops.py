"""A loop over parts of tensors by where the source has it, however different its rounds are."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.host import Host
from advisor.evidence.loops import LEAST_ROUNDS, SampleLoop, loop_between
from advisor.evidence.outside import function_around, users_functions
from advisor.evidence.rounds import Loop, around, calls_its_own, independent, line_of, loop_over_parts
from advisor.evidence.steps import assign, step_windows
from advisor.harness.indexing import KIND

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

_TAKES = ("aten::select", "aten::index")
_MOST_OTHERS = 0.2  # of what a function takes of tensors, outside of the loop: it is told by the function


@functools.lru_cache(maxsize=4)  # several rules ask
def taken_loop(evidence: Evidence, text_of: Callable[[str], str]) -> tuple[SampleLoop, Site] | None:
    """The loop that takes most parts of tensors by number, where no round needs another: what it costs, and its line.

    The operators that take them are those of the loop's function, and the loop goes from the first of a run of them to
    the last. None where the function takes parts elsewhere, too.
    """
    record, detail = evidence.record, evidence.detail
    if record is None or detail is None or not len(detail.operators):
        return None
    taken = [each for each in record.call_sites if each.kind == KIND and not each.details.get("iterates")]
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
        if not function or of_loop < (1.0 - _MOST_OTHERS) * of_all:
            continue
        outer = around(text, loop.lineno)
        again = isinstance(outer, (ast.For, ast.While)) and not (
            isinstance(outer, ast.For) and independent(text, outer) and not calls_its_own(outer)
        )
        each_round = of_loop / max(each.calls for each, _ in inside)
        measured = _measured(evidence, (file, function), each_round, again)
        if measured is not None:
            site = replace(inside[0][0].site, line=line, column=None, end_line=None, end_column=None)
            return measured, site
    return None


def _numbers(text: str, taken: CallSite) -> int:
    """How many numbers stand in the index there: each takes a part of what the one before has taken."""
    column = taken.site.column
    if column is None:
        return 1
    found = Counter(
        sum(not isinstance(each, ast.Slice) for each in _indices(node))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Subscript) and (node.lineno, node.col_offset) == (taken.site.line, column)
    )
    return max(1, *found) if found else 1


def _indices(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


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
