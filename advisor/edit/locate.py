"""Finds the call that was recorded at a site: a file, a line and, from Python 3.11 on, columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import imported_as
from advisor.harness.layout import Site

_Node = TypeVar("_Node", bound=cst.CSTNode)


def call_at(draft: Draft, site: Site, names: Collection[str] = ()) -> cst.Call | None:
    """The call that was recorded at `site`; None when it cannot be told which one it is.

    With columns the call's own extent decides; if it is of another name than `names` (a library made the loader inside
    ``trainer.train()``) there is nothing to edit there. Classes may have other names: a subclass, or the
    ``super().__init__`` of one. Without columns (Python 3.10) it is the only call whose last name is in
    `names` that starts on the line, else has its name there, else spans it (a frame's line inside a multi-line call).
    """
    calls = draft.nodes(cst.Call)
    if site.column is not None:
        exact = by_extent(draft, calls, site)
        if exact is not None:
            return exact if not names or _is_named(draft, exact, names) else None
    named = [call for call in calls if not names or last_name(draft, call) in names]
    for test in (_starts_on, _named_on, _spans):
        found = [call for call in named if test(draft, call, site.line)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def outermost_at(draft: Draft, site: Site) -> cst.Call | None:
    """The call at `site`; without columns the one call of that line that all its other calls are part of."""
    exact = call_at(draft, site)
    if exact is not None or site.column is not None:
        return exact
    found = [call for call in draft.nodes(cst.Call) if draft.line(call) == site.line]
    holders = [each for each in found if all(each is call or _part_of(draft, call, each) for call in found)]
    return holders[0] if len(holders) == 1 else None


def innermost_at(draft: Draft, kind: type[_Node], line: int) -> _Node | None:
    """The innermost node of a kind, a function or a class, whose lines have that one among them."""
    return max((each for each in draft.nodes(kind) if _spans(draft, each, line)), key=draft.line, default=None)


def code_at(draft: Draft, line: int) -> cst.CSTNode | None:
    """The function that begins at a line, or the simple statement that stands there."""
    functions = draft.nodes(cst.FunctionDef)
    first = [each for each in functions if line in (draft.line(each), draft.function_line(each.body))]
    there = [each for each in draft.nodes(cst.SimpleStatementLine) if _spans(draft, each, line)]
    return next(iter((*first, *there)), None)


def within_statement_at(draft: Draft, site: Site) -> cst.Call | None:
    """The call at `site`, or any call of its line when they are all in one statement, which is then what counts."""
    exact = call_at(draft, site)
    if exact is not None or site.column is not None:
        return exact
    found = [call for call in draft.nodes(cst.Call) if draft.line(call) == site.line]
    return found[0] if len({id(draft.statement(call)) for call in found}) == 1 else None


def _part_of(draft: Draft, inner: cst.CSTNode, outer: cst.CSTNode) -> bool:
    return any(above is outer for above in draft.ancestors(inner))


def last_name(draft: Draft, call: cst.Call) -> str:
    """The last part of a call's name, aliases resolved: ``DL(…)`` → ``DataLoader``, ``x.to(…)`` → ``to``."""
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    if isinstance(call.func, cst.Name):
        return imported_as(draft, call.func.value).rpartition(".")[2] or call.func.value
    return ""


def _is_named(draft: Draft, call: cst.Call, names: Collection[str]) -> bool:
    name = last_name(draft, call)
    of_class = any(each[:1].isupper() for each in names)
    return name in names or (of_class and (name[:1].isupper() or name == "__init__"))


def by_extent(draft: Draft, calls: Sequence[_Node], site: Site) -> _Node | None:
    """The one of some calls, or of some subscripts, that has the columns of `site`."""
    if site.end_line is not None and site.end_column is not None:
        end = (site.end_line, _characters(draft, site.end_line, site.end_column))
        # No two calls, nor two subscripts, end at the same place, while x.a().b() holds two that start alike; and a
        # method's name on another line than its object moves the recorded start, not the end (CPython 3.12 and newer).
        return next((call for call in calls if end_of(draft, call) == end), None)
    start = (site.line, _characters(draft, site.line, site.column or 0))
    found = [call for call in calls if start_of(draft, call) == start]
    return found[0] if len(found) == 1 else None


def _characters(draft: Draft, line: int, column: int) -> int:
    """A column in UTF-8 bytes as one in characters."""
    lines = draft.lines
    if not 1 <= line <= len(lines):
        return column
    return len(lines[line - 1].encode()[:column].decode(errors="ignore"))


def start_of(draft: Draft, node: cst.CSTNode) -> tuple[int, int]:
    """Line and column of its first character, as LibCST counts them: from 1 and from 0."""
    start = draft.position(node).start
    return start.line, start.column


def end_of(draft: Draft, node: cst.CSTNode) -> tuple[int, int]:
    """Line and column behind its last character."""
    end = draft.position(node).end
    return end.line, end.column


def _starts_on(draft: Draft, call: cst.Call, line: int) -> bool:
    return draft.line(call) == line


def _named_on(draft: Draft, call: cst.Call, line: int) -> bool:
    return draft.line(call.func.attr if isinstance(call.func, cst.Attribute) else call.func) == line


def _spans(draft: Draft, node: cst.CSTNode, line: int) -> bool:
    where = draft.position(node)
    return where.start.line <= line <= where.end.line
