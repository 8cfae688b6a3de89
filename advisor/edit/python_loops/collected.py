"""Layers in a loop whose results are only collected: no later round reads them, and they can wait for its end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.harness.layout import Site

_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Collected:
    """A call ``self.head(h)`` of a loop, what it is given, and what it is kept in: ``outputs``."""

    line: int  # of the loop
    layer: str  # as the source has it
    given: str
    kept: str


def collected_at(text: str, site: Site) -> Collected | None:
    """The call of a layer at `site` in a loop, where the loop does nothing with its result but to keep it.

    That is ``outputs.append(... layer(h) ...)``, ``outputs[:, t] = ... layer(h) ...``, or ``y = ... layer(h) ...`` and
    `y` in such statements alone; `outputs` is a name. None where anything else in the loop reads the result, or what it
    is kept in, or has to do with the layer; where it is given nothing that the loop makes, or what the loop writes to.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    calls = [*_calls(tree, site)]
    if len(calls) != 1:
        return None
    (call,) = calls
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    statement, loop = _around(call, parents)
    if loop is None or statement is None or not _can_wait(call, loop):
        return None
    kept = _kept(statement, call, loop, parents)
    if not kept or _read(kept, loop, parents):
        return None
    return Collected(loop.lineno, ast.unparse(call.func), ast.unparse(call.args[0]), kept)


def _calls(tree: ast.AST, site: Site) -> Iterator[ast.Call]:
    """Calls there of one argument; of a site without columns (Python 3.10) those on its line that hold no other one."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or len(each.args) != 1 or each.keywords:
            continue
        if not isinstance(each.func, (ast.Name, ast.Attribute)):
            continue
        there = (each.end_lineno, each.end_col_offset) == (site.end_line, site.end_column)
        if site.end_column is None:
            innermost = not any(isinstance(inner, ast.Call) and inner is not each for inner in ast.walk(each))
            there = innermost and each.lineno <= site.line <= (each.end_lineno or each.lineno)
        if there:
            yield each


def _can_wait(call: ast.Call, loop: ast.For | ast.While) -> bool:
    """Whether it is one layer in all rounds, and is given what each round makes anew."""
    layer, root = ast.unparse(call.func), _root(call.func)
    stored = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    if root in stored:
        return False
    own = {*ast.walk(call.func)}
    for each in ast.walk(loop):
        of_layer = isinstance(each, (ast.Name, ast.Attribute)) and each not in own
        if of_layer and ast.unparse(each) in ({layer} if root == "self" else {layer, root}):
            return False  # its weights change, or it is called elsewhere in the loop, too
    given = {each.id for each in ast.walk(call.args[0]) if isinstance(each, ast.Name)}
    return bool(given & stored) and not given & {*_written(loop)}


def _written(loop: ast.AST) -> Iterator[str]:
    """Names of what a loop writes to in place: ``h.add_(x)``, ``h[0] = x``, ``h += x``."""
    for each in ast.walk(loop):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            name = each.func.attr
            if name.endswith("_") and not name.endswith("__"):
                yield _root(each.func)
        elif isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
            yield _root(each)
        elif isinstance(each, ast.AugAssign):
            yield _root(each.target)


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


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
    if any(isinstance(each, ast.NamedExpr) for each in ast.walk(statement)):
        return ""
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
    """The name of what the statement puts `node` into, or something computed of it: a list, a tensor; "" for none."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        inside = any(node is each for argument in statement.value.args for each in ast.walk(argument))
        if isinstance(function, ast.Attribute) and function.attr == "append" and inside:
            return function.value.id if isinstance(function.value, ast.Name) else ""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        inside = any(node is each for each in ast.walk(statement.value))
        if isinstance(target, ast.Subscript) and inside and isinstance(target.value, ast.Name):
            return target.value.id
    return ""


def _read(kept: str, loop: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the loop does more with what is kept than to put something into it."""
    for each in _names(loop, kept):
        above = parents.get(each)
        appended = isinstance(above, ast.Attribute) and above.attr == "append"
        stored = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store) and above.value is each
        if not appended and not stored:
            return True
    return False


def _names(within: ast.AST, name: str) -> list[ast.Name]:
    return [each for each in ast.walk(within) if isinstance(each, ast.Name) and each.id == name]
