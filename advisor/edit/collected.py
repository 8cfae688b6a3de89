"""Layers in a loop whose results are only collected: no later round reads them, and they can wait for its end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Collected:
    """A call ``self.head(h)`` of a loop, what it is given, and what it is kept in: ``outputs``."""

    line: int  # of the loop
    layer: str  # as the source has it
    given: str
    kept: str


def collected_at(text: str, line: int) -> Collected | None:
    """The call on `line` of a layer in a loop, where the loop does nothing with its result but to keep it.

    That is ``outputs.append(... layer(h) ...)``, ``outputs[:, t] = ... layer(h) ...``, or ``y = ... layer(h) ...`` and
    `y` in such statements alone. None where anything else reads the result, or what it is kept in, within the loop.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for call in sorted(_layers(tree, line), key=lambda each: each.col_offset):
        statement, loop = _around(call, parents)
        if loop is None or statement is None:
            continue
        kept = _kept(statement, call, loop, parents)
        if kept and not _read(kept, loop, parents):
            return Collected(loop.lineno, ast.unparse(call.func), ast.unparse(call.args[0]), kept)
    return None


def _layers(tree: ast.AST, line: int) -> Iterator[ast.Call]:
    """Calls on a line of what may be a module, of one argument: ``self.head(h)``, ``head(h)``."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or len(each.args) != 1 or each.keywords or _is_method(each):
            continue
        of_self = isinstance(each.func, ast.Attribute) and isinstance(each.func.value, (ast.Name, ast.Attribute))
        if (isinstance(each.func, ast.Name) or of_self) and each.lineno <= line <= (each.end_lineno or each.lineno):
            yield each


def _is_method(call: ast.Call) -> bool:
    """Whether it is a function of torch's, or a list's: ``torch.relu(x)``, ``outputs.append(x)``."""
    function = call.func
    if isinstance(function, ast.Name):
        return False
    root: ast.expr = function
    while isinstance(root, ast.Attribute):
        root = root.value
    known = isinstance(root, ast.Name) and root.id in ("torch", "F", "nn", "np", "math")
    return known or (isinstance(function, ast.Attribute) and function.attr in ("append", "add", "extend", "put"))


def _around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> tuple[ast.stmt | None, ast.For | ast.While | None]:
    """The statement that has `node`, and the innermost loop around that; no function's in between."""
    statement: ast.stmt | None = None
    while (above := parents.get(node)) is not None:
        if statement is None and isinstance(node, ast.stmt):
            statement = node
        if isinstance(above, _FUNCTIONS):
            return statement or (node if isinstance(node, ast.stmt) else None), None
        if isinstance(above, _LOOPS) and node in above.body:
            return statement or (node if isinstance(node, ast.stmt) else None), above
        node = above
    return statement, None


def _kept(statement: ast.stmt, call: ast.Call, loop: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """What the statement keeps the call's result in; "" where it does something else with it."""
    if (name := _sink(statement, call)) or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return name
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        return ""
    uses = [each for each in _names(loop, target.id) if isinstance(each.ctx, ast.Load)]
    sinks = set()
    for each in uses:
        within, around = _around(each, parents)
        sinks.add(_sink(within, each) if within is not None and around is loop else "")
    # Where it is given something else as well, or read before it is given anything, that is another tensor.
    stores = [each for each in _names(loop, target.id) if isinstance(each.ctx, ast.Store)]
    first = min((each.lineno for each in uses), default=0)
    if len(sinks) != 1 or len(stores) != 1 or first < statement.lineno:
        return ""
    return next(iter(sinks))


def _sink(statement: ast.stmt, node: ast.AST) -> str:
    """The list, or the tensor, that the statement puts `node` into, or something computed of it; "" for none."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        inside = any(node is each for argument in statement.value.args for each in ast.walk(argument))
        appends = isinstance(function, ast.Attribute) and function.attr == "append"
        if appends and inside and isinstance(function, ast.Attribute):
            return ast.unparse(function.value)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        inside = any(node is each for each in ast.walk(statement.value))
        if isinstance(target, ast.Subscript) and inside:
            return ast.unparse(target.value)
    return ""


def _read(kept: str, loop: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the loop does more with what is kept than to put something into it."""
    root = kept.partition(".")[0] if not kept.startswith("self.") else ""
    for each in ast.walk(loop):
        if isinstance(each, (ast.Name, ast.Attribute)) and ast.unparse(each) == kept:
            above = parents.get(each)
            appended = isinstance(above, ast.Attribute) and above.attr == "append"
            stored = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store) and above.value is each
            if not appended and not stored:
                return True
    return bool(root) and root != kept and any(isinstance(each.ctx, ast.Store) for each in _names(loop, root))


def _names(within: ast.AST, name: str) -> list[ast.Name]:
    return [each for each in ast.walk(within) if isinstance(each, ast.Name) and each.id == name]
