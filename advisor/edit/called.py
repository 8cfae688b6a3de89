"""Where a script's source calls something, for traces of which no run has recorded the places."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from advisor.edit.sources import Sources
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

_Repeated = ast.For | ast.While | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef


def calls_in(sources: Sources, path: str, names: Collection[str]) -> tuple[Site, ...]:
    """Calls whose last name is one of `names`, inside a loop or a function: what a step can consist of.

    In the order of the text; none where the file cannot be read.
    """
    found = (node for node in _repeated(sources, path) if isinstance(node, ast.Call) and _last(node.func) in names)
    return tuple(_site(path, node) for node in found)


def masks_in(sources: Sources, path: str) -> tuple[Site, ...]:
    """Subscripts by a mask, as far as the text tells: ``x[y > 0]``, ``x[~a]``, ``x[valid_mask]``."""
    found = (node for node in _repeated(sources, path) if isinstance(node, ast.Subscript) and _is_mask(node.slice))
    return tuple(_site(path, node) for node in found)


def _repeated(sources: Sources, path: str) -> Iterator[ast.expr]:
    try:
        tree = ast.parse(sources.text(path))
    except (AdvisorError, SyntaxError, ValueError):
        return
    seen: set[ast.AST] = set()
    for outer in ast.walk(tree):
        if isinstance(outer, _Repeated):
            for node in ast.walk(outer):
                if isinstance(node, ast.expr) and node not in seen:
                    seen.add(node)
                    yield node


def _is_mask(index: ast.expr) -> bool:
    if isinstance(index, ast.Tuple):
        return any(_is_mask(each) for each in index.elts)
    if isinstance(index, ast.BinOp):
        return isinstance(index.op, ast.BitAnd | ast.BitOr)
    name = _last(index)
    return isinstance(index, ast.Compare) or "mask" in name.lower() or _inverts(index)


def _inverts(index: ast.expr) -> bool:
    return isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _site(path: str, node: ast.expr) -> Site:
    return Site(path, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
