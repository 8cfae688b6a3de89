"""Loops in Python that call an LSTM cell for one element of a sequence after another, as the source has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.evidence.bindings import bound, made_of, names_in
from advisor.evidence.rounds import TRAINS

_CELL = "LSTMCell"
_COLLECTS = frozenset(("append", "appendleft", "extend", "insert", "add", "put"))
_LEAVES = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True)
class CellLoop:
    """``line`` of the loop; the ``cells`` that it calls, by what the source calls them."""

    line: int
    cells: tuple[str, ...]


def cell_loops(text: str) -> tuple[CellLoop, ...] | None:
    """The loops of a file that give its cells what is known before they begin: a whole sequence.

    None where a cell is called anywhere else: for an input that a round made of an earlier one's state (a decoder),
    with a state that something else changes in between (a mask, a reset), or not in a loop; and where `text` does not
    parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    cells = set(_cells(tree))
    calls = {id(node) for node in ast.walk(tree) if _cell_of(node, cells)}
    found = []
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and (known := _known(loop, cells)):
            found.append(CellLoop(loop.iter.lineno, tuple(name for name, _ in known)))
            calls -= {id(call) for _, call in known}
    return tuple(found) if not calls else None


def _cells(tree: ast.AST) -> Iterator[str]:
    """``self.cell`` of each that is made."""
    for node in ast.walk(tree):
        for name, made in _assigned(node) if isinstance(node, ast.Assign) else ():
            if isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2] == _CELL:
                yield ast.unparse(name)


def _assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(name, value) of each, those of ``a, b = x, y`` one by one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _cell_of(node: ast.AST, cells: set[str]) -> str:
    """What the cell is called that `node` calls; "" where it calls none."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return name if name in cells else ""


def _known(loop: ast.For, cells: set[str]) -> list[tuple[str, ast.Call]]:
    """The cells that a round calls, with the calls; none where one of them is not given what is known before."""
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    called = [name for node in inside if (name := _cell_of(node, cells))]
    methods = {node.func.attr for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    if not called or methods & TRAINS or any(isinstance(node, _LEAVES) for node in inside):
        return []
    found = []
    for statement in loop.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        name = _cell_of(statement.value, cells)
        if not name or not isinstance(statement.value, ast.Call):
            continue
        state, call = ast.unparse(statement.targets[0]).strip("()"), statement.value
        if _given(call) != state or not _only_here(loop, statement) or _from_state(loop, statement, call):
            return []
        found.append((name, call))
    return found if len(found) == len(called) else []


def _given(call: ast.Call) -> str:
    """The state that a cell is given, without the parentheses of a tuple; "" for none."""
    given = [*call.args[1:], *(each.value for each in call.keywords if each.arg == "hx")]
    return ast.unparse(given[0]).strip("()") if len(call.args) >= 1 and len(given) == 1 else ""


def _only_here(loop: ast.For, statement: ast.Assign) -> bool:
    """Whether names are given the state, and none of them is given anything else in the loop."""
    target = statement.targets[0]
    if any(isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)) for node in ast.walk(target)):
        return False
    stores = [
        node.id
        for each in loop.body
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names_in(target)
    ]
    return len(stores) == len(names_in(target)) and not names_in(target) & names_in(loop.target)


def _from_state(loop: ast.For, statement: ast.Assign, call: ast.Call) -> bool:
    """Whether what the cell is given as input has come from its own state, by whatever way."""
    inside = [node for each in loop.body for node in ast.walk(each)]
    # x[i] = h gives no name but x a value.
    links = [(target.value if isinstance(target, ast.Subscript) else target, value) for target, value in bound(inside)]
    for node in inside:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr  # found.append(h), found.copy_(h)
            if method in _COLLECTS or (method.endswith("_") and not method.startswith("_")):
                links += [(node.func.value, each) for each in node.args]
    return bool(names_in(call.args[0]) & made_of(names_in(statement.targets[0]), links))
