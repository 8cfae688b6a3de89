"""Whether a line of a dataset computes the same of a sample each time that it is asked for."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from itertools import chain

# What may be another thing each time, or read from elsewhere, by its names.
_CHANGES = re.compile(
    r"rand|shuffle|choice|uniform|gauss|normal\b|normal_|bernoulli|perm(utation)?\b|augment|jitter|noise|mixup|cutout|dropout"
    r"|epoch|^(perf_|process_)?time(_ns)?$|perf_counter|monotonic|\bnow$|today|cache|open\b|read|load\b|next\b|drop\b|crop|flip|roll\b|shift|warp|training\b",
    re.IGNORECASE,
)


def computes_the_same(text: str, line: int) -> str:
    """The functions of the file that the statement on `line` of a method computes a sample with: "Scalogram.power".

    "" where the statement calls none, or something whose source is not in `text` (an attribute that is called: a
    transform), or that by its names may be different each time: drawn at random, augmented, read from a file.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    holding = [each for each in functions.values() if each.lineno <= line <= (each.end_lineno or 0)]
    method = max(holding, key=lambda each: each.lineno, default=None)
    statements = (each for each in ast.walk(method) if isinstance(each, ast.stmt)) if method is not None else ()
    there = [each for each in statements if each.lineno <= line <= (each.end_lineno or 0) and each is not method]
    statement = max(there, key=lambda each: each.lineno, default=None)
    if statement is None or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
        return ""
    known = {*dir(builtins), *_imported(tree)}
    called: dict[str, ast.FunctionDef] = {}
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if any(_CHANGES.search(name) for name in _names(node)):
            return ""
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            own = _own_function(call.func)
            if own in functions and own not in called:
                called[own] = functions[own]
                todo.extend(functions[own].body)
            elif own not in functions and not _is_known(call.func, known):
                return ""
    return ", ".join(called)


def _imported(tree: ast.AST) -> Iterator[str]:
    imports = (each for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom)))
    for alias in chain.from_iterable(each.names for each in imports):
        yield (alias.asname or alias.name).partition(".")[0]


def _own_function(function: ast.expr) -> str:
    """The name of what is called as ``name(…)`` or ``self.name(…)``."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_known(function: ast.expr, known: set[str]) -> bool:
    """Whether it is a library's function, a builtin, or a method of what is at hand, not of an attribute's object."""
    if isinstance(function, ast.Name):
        return function.id in known
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    of_self = isinstance(root, ast.Name) and root.id == "self"
    return isinstance(function, ast.Attribute) and not of_self


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name):
            yield each.id
