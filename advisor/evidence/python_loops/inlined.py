"""Loops with the methods that their rounds call written out in them, for what looks at one body only."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

_OWN = "{method}.{name}"  # no name of the source's: what a method calls its own


def with_methods_in_loops(tree: ast.Module, elsewhere: str = "") -> ast.Module:
    """A copy of `tree` in which ``y, h = self.step(x, h)``, in the body of a ``for``, is what ``step`` does.

    Of methods of the class that has the loop, which only assign, and return at their end, and which nothing else
    mentions, not `elsewhere` either, the text of other files: these are left out where they stood.
    """
    tree = copy.deepcopy(tree)
    nodes = list(ast.walk(tree))
    defined = Counter(each.name for each in nodes if isinstance(each, ast.FunctionDef))
    mentioned = Counter(each.attr if isinstance(each, ast.Attribute) else each.id for each in nodes if _is_name(each))
    for cls in (each for each in nodes if isinstance(each, ast.ClassDef)):
        methods = {each.name: each for each in cls.body if isinstance(each, ast.FunctionDef) and _is_plain(each)}
        loops = [each for each in ast.walk(cls) if isinstance(each, ast.For)]
        for name, method in methods.items():
            if defined[name] > 1 or re.search(rf"\b{name}\b", elsewhere):
                continue
            calls = [(loop, each) for loop in loops for each in loop.body if _called(each) == name]
            written = [_written_out(each, method) for _, each in calls]
            if not calls or len(calls) != mentioned[name] or None in written:
                continue
            for (loop, statement), instead in zip(calls, written, strict=True):
                at = loop.body.index(statement)
                loop.body[at : at + 1] = instead or []
            cls.body = [each for each in cls.body if each is not method] or [ast.Pass()]
    return tree


def _is_name(node: ast.AST) -> TypeGuard[ast.Attribute | ast.Name]:
    return isinstance(node, (ast.Attribute, ast.Name))


def _is_plain(function: ast.FunctionDef) -> bool:
    """Whether it assigns, and returns at its end, and does nothing else that matters."""
    given, body = function.args, _statements(function)
    if given.vararg or given.kwarg or given.kwonlyargs or function.decorator_list or not body:
        return False
    return isinstance(body[-1], ast.Return) and all(isinstance(each, ast.Assign) for each in body[:-1])


def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """Its body without the docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _called(statement: ast.stmt) -> str:
    """``step`` of ``y = self.step(…)``; "" of anything else."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    function = call.func if isinstance(call, ast.Call) else None
    of_self = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self"
    return function.attr if isinstance(function, ast.Attribute) and of_self else ""


def _written_out(statement: ast.stmt, function: ast.FunctionDef) -> list[ast.stmt] | None:
    """What the method does there, by the names of where it is called; None where its arguments cannot be told."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    call, parameters = statement.value, [each.arg for each in function.args.args[1:]]
    if any(isinstance(each, ast.Starred) for each in call.args) or not all(each.arg for each in call.keywords):
        return None
    arguments = dict(zip(parameters, call.args, strict=False)) | {str(each.arg): each.value for each in call.keywords}
    if set(arguments) != set(parameters) or len(call.args) + len(call.keywords) != len(parameters):
        return None
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    *rest, last = _statements(function)
    pairs = _pairs(statement.targets, last.value if isinstance(last, ast.Return) else None)
    # A state that it is given, and changes, has the caller's name where the caller's is what it becomes.
    back = {value.id: ast.unparse(target) for target, value in pairs if isinstance(value, ast.Name)}
    if any(name in own and back.get(name) != ast.unparse(value) for name, value in arguments.items()):
        return None
    names: dict[str, ast.expr] = {
        name: ast.Name(_OWN.format(method=function.name, name=name), ast.Load()) for name in own - set(arguments)
    }
    renamed = _Renamed(arguments | names)
    *body, end = (renamed.visit(copy.deepcopy(each)) for each in (*rest, last))
    return [*body, *_assigned(statement.targets, end.value)]


def _pairs(targets: Sequence[ast.expr], value: ast.expr | None) -> list[tuple[ast.expr, ast.expr]]:
    """(target, value) of each, of ``y, h = f(x), h`` one by one."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in targets if value is not None else ():
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            found += zip(target.elts, value.elts, strict=True)
        elif value is not None:
            found.append((target, value))
    return found


def _assigned(targets: Sequence[ast.expr], value: ast.expr | None) -> list[ast.stmt]:
    """``y, h = f(x), h`` as ``y = f(x)``: what is given its own name is what it was."""
    pairs = [(one, other) for one, other in _pairs(targets, value) if ast.unparse(one) != ast.unparse(other)]
    return [ast.copy_location(ast.Assign([one], other), one) for one, other in pairs]


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._names.get(node.id)
        if value is None:
            return node
        if isinstance(value, ast.Name):
            return ast.copy_location(ast.Name(value.id, node.ctx), node)
        return copy.deepcopy(value)
