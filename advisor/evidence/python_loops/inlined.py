"""Loops with the methods that their rounds call written out in them, for what looks at one body only."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping, Sequence

_OWN = "{method}.{name}"  # no name of the source's: what a method calls its own


def with_methods_in_loops(tree: ast.Module) -> ast.Module:
    """A copy of `tree` in which ``y, h = self.step(x, h)``, in the body of a ``for``, is what ``step`` does.

    Of functions that a file has one of by that name, which only assign, and return at their end. One that is called in
    such a way only is left out where it stood.
    """
    tree = copy.deepcopy(tree)
    named: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            named.setdefault(node.name, []).append(node)
    known = {name: each[0] for name, each in named.items() if len(each) == 1 and _is_plain(each[0])}
    calls = Counter(name for node in ast.walk(tree) if (name := _called(node)))
    written = Counter[str]()
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For)):
        body: list[ast.stmt] = []
        for statement in loop.body:
            name = _called(statement.value) if isinstance(statement, ast.Assign) else ""
            found = _written_out(statement, known[name]) if name in known else None
            written[name] += found is not None
            body += [statement] if found is None else found
        loop.body = body
    gone = {name for name, count in written.items() if count and count == calls[name]}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            kept = [each for each in node.body if not (isinstance(each, ast.FunctionDef) and each.name in gone)]
            node.body = kept or [ast.Pass()]
    return tree


def _is_plain(function: ast.FunctionDef) -> bool:
    """Whether it assigns, and returns at its end, and does nothing else that matters."""
    given, body = function.args, _statements(function)
    if given.vararg or given.kwarg or given.kwonlyargs or function.decorator_list or not body:
        return False
    return isinstance(body[-1], ast.Return) and all(isinstance(each, ast.Assign) for each in body[:-1])


def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """Its body without the docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _called(node: ast.AST | None) -> str:
    """``step`` of ``self.step(…)`` and of ``step(…)``."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _written_out(statement: ast.stmt, function: ast.FunctionDef) -> list[ast.stmt] | None:
    """What the function does there, by the names of where it is called; None where its arguments cannot be told."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    call, parameters = statement.value, [each.arg for each in function.args.args]
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    given = [*([receiver] if receiver is not None and parameters[:1] == ["self"] else []), *call.args]
    if any(isinstance(each, ast.Starred) for each in given) or not all(each.arg for each in call.keywords):
        return None
    arguments = dict(zip(parameters, given, strict=False)) | {str(each.arg): each.value for each in call.keywords}
    if set(arguments) != set(parameters) or len(given) + len(call.keywords) != len(parameters):
        return None
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    # A state that it is given, and changes, keeps the caller's name; anything else of its own gets one of its own.
    if any(name in own and not isinstance(value, ast.Name) for name, value in arguments.items()):
        return None
    names: dict[str, ast.expr] = {
        name: ast.Name(_OWN.format(method=function.name, name=name), ast.Load()) for name in own - set(arguments)
    }
    renamed = _Renamed(arguments | names)
    *body, last = (renamed.visit(copy.deepcopy(each)) for each in _statements(function))
    return [*body, *_assigned(statement.targets, last.value)]


def _assigned(targets: Sequence[ast.expr], value: ast.expr | None) -> list[ast.stmt]:
    """``y, h = f(x), h`` as ``y = f(x)``: what is given its own name is what it was."""
    found: list[ast.stmt] = []
    for target in targets:
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for one, other in pairs:
            if other is not None and ast.unparse(one) != ast.unparse(other):
                found.append(ast.copy_location(ast.Assign([one], other), target))
    return found


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
