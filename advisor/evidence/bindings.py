"""Which names of Python a piece of source gives values, what becomes of a value by name, and where nodes stand."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def names_in(node: ast.AST) -> set[str]:
    """All names that `node` mentions."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name: ``grad`` of ``torch.autograd.grad``; "" of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def on_line(node: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a statement, or an expression, has a part on that line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def run_there(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or, of a file, those outside of all functions."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from run_there(child)


def bound(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of what `nodes` give names to: ``a = b``, ``for a in b``, ``with b as a``."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield node.target, node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield node.optional_vars, node.context_expr


def made_of(first: set[str], pairs: Iterable[tuple[ast.expr, ast.expr]]) -> set[str]:
    """The names `first`, and all that (target, value) `pairs` make of them, one from another."""
    links = [(names_in(target), names_in(value)) for target, value in pairs]
    found, before = set(first), 0
    while len(found) > before:
        before = len(found)
        for targets, values in links:
            if values & found:
                found |= targets
    return found
