"""What functions take whose result is the same in every step, as the calls of torch's tell that they return.

Anchors that thousands of small operators lay out in a loop: the loop's own calls are too short to be looked at, and the
last one, ``return torch.cat(boxes)``, gives the same each time. All that the function does comes to nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import begins, function_around
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, by_step, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import Steps
    from advisor.harness.layout import Recomputed, Site
    from advisor.trace.tables import Trace

Function = tuple[str, int]
"""The file, and the first line."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def constant_functions_s(evidence: Evidence, recomputed: Iterable[Recomputed], text_of: Callable[[str], str]) -> float:
    """Seconds of an undisturbed step in functions that return what one of `recomputed` gives, and nothing else.

    By the operators that they call in the window with stacks, found again in the window without. `text_of` gives a
    file's text, "" where there is none.
    """
    functions = {each for one in recomputed if (each := _returning(one, text_of)) is not None}
    trace, detail = evidence.trace, evidence.detail
    if not functions or detail is None or not len(evidence.steps):
        return 0.0
    runs = {tuple(each) for each in _called_in(detail, step_windows(detail), functions)}
    total = sum(_lasts_ns(trace, evidence.steps, list(run)) for run in runs if run)
    return total / max(1, evidence.steps.total_ns) * (evidence.step_s or 0.0)


def _returning(found: Recomputed, text_of: Callable[[str], str]) -> Function | None:
    """The outermost function that returns it."""
    function: Function | None = None
    for frame in found.called_from if not (found.whole or found.given) else ():
        if not _is_returned(text_of(frame.file), frame):
            break
        function = frame.file, function_around(frame.file, frame.line)
    return function if function is not None and function[1] else None


def _is_returned(text: str, site: Site) -> bool:
    """Whether the call at `site` is what its function returns, at once or by the name that it gets."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    for function in (each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)):
        returns = [each for each in ast.walk(function) if isinstance(each, ast.Return) and each.value is not None]
        if any(each.value is not None and _is_at(each.value, site) for each in returns):
            return True
        names = {each.value.id for each in returns if isinstance(each.value, ast.Name)}
        bound = [each for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        for given in (each for each in function.body if isinstance(each, ast.Assign)):
            (target, *others) = given.targets
            alone = isinstance(target, ast.Name) and not others and len(returns) == 1 and target.id in names
            if alone and _is_at(given.value, site):
                return sum(each.id in names for each in bound) == 1
    return False


def _is_at(node: ast.expr, site: Site) -> bool:
    if not isinstance(node, ast.Call) or node.lineno != site.line:
        return False
    where = (node.col_offset, node.end_lineno, node.end_col_offset)
    return site.column is None or where == (site.column, site.end_line, site.end_column)


def _called_in(detail: Trace, steps: Steps, functions: set[Function]) -> list[list[str]]:
    """The names of the outermost operators that each call of these functions makes, in their order."""
    operators, stacks = detail.operators, Stacks.of(detail, steps.lane)
    outer = np.flatnonzero((operators.lane == steps.lane) & (Nesting(detail).parent < 0))
    outer = outer[np.argsort(operators.start[outer], kind="stable")]
    starts = operators.start[outer]
    known = {
        each: any(each.is_of(file) and begins(file, each) == line for file, line in functions)
        for each in set(stacks.functions)
    }
    found = []
    for row in np.flatnonzero([known[each] for each in stacks.functions]).tolist():
        low, high = np.searchsorted(starts, [stacks.start[row], stacks.end[row]])
        found.append([detail.name(int(code)) for code in operators.name[outer[low:high]]])
    return found


def _lasts_ns(trace: Trace, steps: Steps, run: list[str]) -> int:
    """ns of all steps from the first to the last of operators that follow each other as `run` has them."""
    operators = trace.operators
    outer = np.flatnonzero((operators.lane == steps.lane) & (Nesting(trace).parent < 0))
    outer = outer[np.argsort(operators.start[outer], kind="stable")]
    wanted = [trace.names.index(each) if each in trace.names else -1 for each in dict.fromkeys(run)]
    codes = dict(zip(dict.fromkeys(run), wanted, strict=True))
    asked, total = np.array([codes[each] for each in run]), 0
    for rows in by_step(outer, assign(steps, operators.start[outer]), len(steps)):
        names = operators.name[rows].astype(np.int64)
        at = 0
        while at + len(asked) <= len(names):
            if names[at] == asked[0] and (names[at : at + len(asked)] == asked).all():
                total += int(operators.end[rows[at + len(asked) - 1]] - operators.start[rows[at]])
                at += len(asked)
            else:
                at += 1
    return total
