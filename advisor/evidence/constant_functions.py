"""What functions take whose result is the same in every step, as the calls of torch's tell that they return.

Anchors that thousands of small operators lay out in a loop: the loop's own calls are too short to be looked at, and the
last one, ``return torch.cat(boxes)``, gives the same each time. All that the function does comes to nothing else.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import begins, function_around
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, by_step, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import Steps
    from advisor.harness.layout import Recomputed, Site
    from advisor.trace.tables import Ints, Trace

Function = tuple[str, int]
"""The file, and the first line."""

_ALL = 0.95  # of the step: no more is promised
# Anchors took 0.53 of a step by what their absence gained: 0.56 of the traced one, 0.41 with all of it taken off.
_TAKEN_OFF = 0.5
_AS_OFTEN = 1.1  # calls of a function for one that gave the same: then it gives nothing else
_LEAST_OPERATORS = 16  # of a call: of fewer the recorded calls are nearly all
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def constant_functions_s(evidence: Evidence, recomputed: Iterable[Recomputed], text_of: Callable[[str], str]) -> float:
    """Seconds of an undisturbed step in functions that return what one of `recomputed` gives, and nothing else.

    By the operators that they call in the window with stacks, found again in the window without, where these come in a
    step. `text_of` gives a file's text, "" where there is none.
    """
    functions: dict[Function, float] = {}
    for one in recomputed:
        if (function := _returning(one, text_of)) is not None:
            functions[function] = max(one.calls, functions.get(function, 0))
    trace, detail = evidence.trace, evidence.detail
    if not functions or detail is None or not len(evidence.steps):
        return 0.0
    start, end = _spans(trace, evidence, _called_in(detail, step_windows(detail), functions))
    inside = Coverage.of(start, end)
    share = float((inside.end - inside.start).sum()) / max(1, evidence.steps.total_ns)
    # What the trace has written down for them is taken off, in proportion to their operators.
    starts = trace.operators.start[assign(evidence.steps, trace.operators.start) >= 0]
    written = float(inside.contains(starts).sum()) / max(1, len(starts))
    share += _TAKEN_OFF * (evidence.inflation - 1.0) * (share - written)
    return min(_ALL, max(0.0, share)) * (evidence.step_s or 0.0)


def _returning(found: Recomputed, text_of: Callable[[str], str]) -> Function | None:
    """The outermost function that returns it."""
    function: Function | None = None
    for frame in found.called_from if not (found.whole or found.given) else ():
        if not _is_returned(text_of(frame.file), frame):
            break
        function = frame.file, function_around(frame.file, frame.line)
    return function if function is not None and function[1] else None


def _is_returned(text: str, site: Site) -> bool:
    """Whether the call at `site` is what its function returns, at once or by the name that it gets, and all it does.

    What returns elsewhere as well, or keeps something in an object, does more than that.
    """
    for function in _functions(text):
        inside = list(ast.walk(function))
        returns = [each for each in inside if isinstance(each, ast.Return) and each.value is not None]
        if len(returns) != 1 or any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in inside):
            continue
        (only,) = returns
        stored = (each for each in inside if isinstance(each, (ast.Attribute, ast.Subscript)))
        if any(isinstance(each.ctx, ast.Store) and isinstance(_whole(each), ast.Attribute) for each in stored):
            continue
        if only.value is not None and _is_at(only.value, site):
            return True
        if isinstance(only.value, ast.Name) and _is_bound_once(inside, only.value.id, site):
            return True
    return False


def _is_bound_once(inside: list[ast.AST], name: str, site: Site) -> bool:
    """Whether a function that returns `name` gives it the call at `site`, and does nothing else with it."""
    named = [each for each in inside if isinstance(each, ast.Name) and each.id == name]
    given = [each for each in inside if isinstance(each, ast.Assign) and len(each.targets) == 1]
    return len(named) == 2 and any(each.targets[0] in named and _is_at(each.value, site) for each in given)


@functools.lru_cache(maxsize=16)
def _functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    try:
        return [each for each in ast.walk(ast.parse(text)) if isinstance(each, _FUNCTIONS)]
    except (SyntaxError, ValueError):
        return []


def _whole(node: ast.Attribute | ast.Subscript) -> ast.expr:
    """What is written to: of ``self.kept[key]`` the attribute, of ``grid[0, 1]`` the name."""
    return node if isinstance(node, ast.Attribute) else node.value


def _is_at(node: ast.expr, site: Site) -> bool:
    """Whether that is the call at `site`, and no object that is made there: of that something else may be constant."""
    if not isinstance(node, ast.Call) or node.lineno != site.line or _makes_object(node):
        return False
    where = (node.col_offset, node.end_lineno, node.end_col_offset)
    return site.column is None or where == (site.column, site.end_line, site.end_column)


def _makes_object(call: ast.Call) -> bool:
    """Whether a class is called, by its name: a distribution, which checks what it is given."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name[:1].isupper()


def _called_in(detail: Trace, steps: Steps, functions: dict[Function, float]) -> dict[tuple[str, ...], list[int]]:
    """The names of the outermost operators that calls of these functions make → how many came before, in each step.

    Of calls within calls the outer ones. What makes few is as well told by its own time. `functions` are those of which
    so many calls in a step are known to give the same; what is called more often gives something else, too: a layer of
    a decoder, for all but the first word.
    """
    stacks = Stacks.of(detail, steps.lane)
    counted = Counter(each for each, at in zip(stacks.functions, assign(steps, stacks.start), strict=True) if at >= 0)
    is_one = {
        each: any(
            each.is_of(file) and begins(file, each) == line and times <= _AS_OFTEN * known * len(steps)
            for (file, line), known in functions.items()
        )
        for each, times in counted.items()
    }
    calls = np.flatnonzero([is_one.get(each, False) for each in stacks.functions])
    inner = {
        row
        for row in calls.tolist()
        if any(is_one.get(stacks.functions[each]) for each in islice(stacks.up(row), 1, None))
    }
    outer = _outermost(detail, steps.lane, Nesting(detail).parent)
    starts = detail.operators.start[outer]
    found: dict[tuple[str, ...], list[int]] = {}
    for step in range(len(steps)):
        first = int(np.searchsorted(starts, steps.start[step]))
        for row in calls.tolist():
            if row in inner or not steps.start[step] <= stacks.start[row] < steps.end[step]:
                continue
            low, high = np.searchsorted(starts, [stacks.start[row], stacks.end[row]]).tolist()
            if high - low >= _LEAST_OPERATORS:
                names = tuple(detail.name(int(code)) for code in detail.operators.name[outer[low:high]])
                found.setdefault(names, []).append(low - first)
    return {names: sorted(set(at)) for names, at in found.items()}


def _outermost(trace: Trace, lane: int, parent: Ints) -> Ints:
    """The rows of a thread's operators that no other operator calls, in order."""
    outer = np.flatnonzero((trace.operators.lane == lane) & (parent < 0))
    return outer[np.argsort(trace.operators.start[outer], kind="stable")]


def _spans(trace: Trace, evidence: Evidence, runs: dict[tuple[str, ...], list[int]]) -> tuple[Ints, Ints]:
    """Where such operators begin and end, in each step those that come nearest to where they came in the others."""
    operators, steps = trace.operators, evidence.steps
    outer = _outermost(trace, steps.lane, evidence.nesting.parent)
    begin, end = list[int](), list[int]()
    codes = {name: code for code, name in enumerate(trace.names)}
    for rows in by_step(outer, assign(steps, operators.start[outer]), len(steps)):
        names = operators.name[rows].astype("<i4").tobytes()
        for run, places in runs.items():
            asked = np.array([codes.get(each, -1) for each in run], "<i4").tobytes()
            there = _found(names, asked)
            for place in places if there else ():
                at = min(there, key=lambda each: abs(each - place))
                begin.append(int(operators.start[rows[at]]))
                end.append(int(operators.end[rows[at + len(run) - 1]]))
    return np.array(begin, np.int64), np.array(end, np.int64)


def _found(names: bytes, asked: bytes) -> list[int]:
    """Where numbers of four bytes have those that are `asked` one after the other; none of these overlap."""
    found, at = list[int](), names.find(asked)
    while at >= 0:
        if at % 4 == 0:
            found.append(at // 4)
        at = names.find(asked, at + (len(asked) if at % 4 == 0 else 1))
    return found
