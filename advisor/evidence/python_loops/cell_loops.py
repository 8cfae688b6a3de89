"""Loops in Python that call an LSTM cell for one element of a sequence after another, as the source has them.

Or an ``nn.LSTM``, which could have the whole sequence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.evidence.bindings import bound, made_of, names_in
from advisor.evidence.python_loops.inlined import with_methods_in_loops
from advisor.evidence.python_loops.rounds import TRAINS

_CELL, _WHOLE = "LSTMCell", "LSTM"
_COLLECTS = frozenset(("append", "appendleft", "extend", "insert", "add", "put"))
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True)
class CellLoop:
    """``line`` of the loop; the ``cells`` that it calls, by what the source calls them (an ``nn.LSTM``: ``whole``)."""

    line: int
    cells: tuple[str, ...]
    whole: bool = False


def cell_loops(text: str, elsewhere: str = "") -> tuple[CellLoop, ...] | None:
    """The loops of a file that give its cells what is known before they begin: a whole sequence.

    None where a cell is called anywhere else: for an input that a round made of an earlier one's state (a decoder),
    with a state that something else changes in between (a mask, a reset), or not in a loop; and where `text` does not
    parse. `elsewhere`: the text of the other files, which may call its methods.
    """
    try:
        tree = with_methods_in_loops(ast.parse(text), elsewhere)
    except (SyntaxError, ValueError):
        return None
    cells, lists, wholes = set(_cells(tree)), set(_lists(tree)), set(_cells(tree, _WHOLE))
    loops = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For)]
    calls = {id(node) for node in ast.walk(tree) if _cell_of(node, cells)}
    # One that is given a sequence, in no loop, may be.
    calls |= {id(node) for loop in loops for node in ast.walk(loop) if _cell_of(node, wholes) and _state_of(node)}
    calls |= {id(call) for loop in loops for _, call in _of_lists(loop, lists)}
    calls |= {id(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and _element_of(node.func, lists)}
    found = []
    for loop in loops:
        if known := _known(loop, cells) or _known(loop, wholes, beside=True) or _known_on_top(loop, lists):
            names = tuple(name for name, _ in known)
            found.append(CellLoop(loop.iter.lineno, names, whole=names[0] in wholes))
            calls -= {id(call) for _, call in known}
    return tuple(found) if not calls else None


def _cells(tree: ast.AST, kind: str = _CELL) -> Iterator[str]:
    """``self.cell`` of each that is made."""
    for node in ast.walk(tree):
        for name, made in _assigned(node) if isinstance(node, ast.Assign) else ():
            if _makes(made, kind):
                yield ast.unparse(name)


def _lists(tree: ast.AST) -> Iterator[str]:
    """``self.cells`` of each list of cells, one on top of the other: ``nn.ModuleList(nn.LSTMCell(…) for …)``."""
    for node in ast.walk(tree):
        for name, made in _assigned(node) if isinstance(node, ast.Assign) else ():
            if not _makes(made, "ModuleList") or not isinstance(made, ast.Call) or not made.args:
                continue
            given = made.args[0]
            parts = [given.elt] if isinstance(given, (ast.ListComp, ast.GeneratorExp)) else getattr(given, "elts", [])
            if parts and all(_makes(each, _CELL) for each in parts):
                yield ast.unparse(name)


def _makes(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name


def _element_of(node: ast.AST, lists: set[str]) -> str:
    """The list that ``self.cells[i]`` is an element of; ""."""
    name = ast.unparse(node.value) if isinstance(node, ast.Subscript) else ""
    return name if name in lists else ""


def _of_lists(loop: ast.For, lists: set[str]) -> list[tuple[str, ast.Call]]:
    """The lists whose elements a round of this loop calls by the name that it gives them, with the calls."""
    over = [ast.unparse(node) for node in ast.walk(loop.iter) if isinstance(node, (ast.Name, ast.Attribute))]
    names = names_in(loop.target)
    return [
        (each, node)
        for each in dict.fromkeys(over)
        if each in lists
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]


def _known_on_top(loop: ast.For, lists: set[str]) -> list[tuple[str, ast.Call]]:
    """The same for cells on top of each other, which a loop inside of `loop` calls one by one for an element.

    ``h[i], c[i] = cell(x, (h[i], c[i])); x = h[i]``: the lowest of them is given what is known before, each other one
    the state of the one below.
    """
    inner = [each for each in loop.body if isinstance(each, ast.For)]
    if len(inner) != 1 or _ends_or_trains(loop):
        return []
    (levels,) = inner
    inside = list(_inside(loop))
    called = _of_lists(levels, lists)
    called += [(name, n) for n in inside if isinstance(n, ast.Call) and (name := _element_of(n.func, lists))]
    calls = [call for _, call in called]
    stepping = [each for each in levels.body if isinstance(each, ast.Assign) and each.value in calls]
    if len(called) != 1 or len(stepping) != 1 or len(stepping[0].targets) != 1:
        return []
    (name, call), (target,) = called[0], stepping[0].targets
    states = _of_level(target, levels)
    if not states or _given(call) != ast.unparse(target).strip("()") or not isinstance(call.args[0], ast.Name):
        return []
    if isinstance(call.func, ast.Subscript) and not names_in(call.func.slice) & names_in(levels.target):
        return []  # the same cell for each level
    if any(names_in(each) & states for each, value in bound(inside) if value is not call) or _written(inside, states):
        return []  # a mask, a reset
    up, hidden = call.args[0].id, _hidden(target)
    above = [value for each, value in bound(_inside(levels)) if names_in(each) == {up}]
    if len(above) != 1 or ast.unparse(_dropped(above[0])) != hidden:
        return []
    before = loop.body[: loop.body.index(levels)]
    first = [each.value for each in before if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == up]
    first += [loop.iter] if up in names_in(loop.target) else []
    computed = made_of(states | {up}, _links(inside))
    return [] if not first or any(names_in(each) & computed for each in first) else [(name, call)]


def _hidden(target: ast.expr) -> str:
    """What the state is called that goes up, of ``h[i], c[i]`` or of ``s[i]``, a pair."""
    return ast.unparse(target.elts[0]) if isinstance(target, ast.Tuple) else f"{ast.unparse(target)}[0]"


def _dropped(value: ast.expr) -> ast.expr:
    """What a dropout is given: ``nn.LSTM`` has one between its layers."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and "drop" in ast.unparse(value.func).lower():
        return value.args[0]
    return value


def _written(inside: list[ast.AST], states: set[str]) -> bool:
    """``h[i].mul_(mask)``: whether a method changes a state in place."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.endswith("_")
        and names_in(node.func.value) & states
        for node in inside
    )


def _of_level(target: ast.expr, levels: ast.For) -> set[str]:
    """``{"h", "c"}`` of ``h[i], c[i]``, with what the loop over the levels counts; nothing of anything else."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = set[str]()
    for each in parts:
        if not (isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)):
            return set()
        if not names_in(each.slice) & names_in(levels.target):
            return set()
        names.add(each.value.id)
    return names


def _inside(loop: ast.For) -> Iterator[ast.AST]:
    for statement in loop.body:
        yield from ast.walk(statement)


def _ends_or_trains(loop: ast.For) -> bool:
    """Whether a round may be the last, or is a step of a training."""
    inside = list(_inside(loop))
    methods = {node.func.attr for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    return bool(methods & TRAINS) or any(isinstance(node, _LEAVES) for node in inside)


def _links(inside: list[ast.AST]) -> list[tuple[ast.expr, ast.expr]]:
    """(name, value) of what a round gives values, and puts into what."""
    # x[i] = h gives no name but x a value.
    links = [(target.value if isinstance(target, ast.Subscript) else target, value) for target, value in bound(inside)]
    for node in inside:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr  # found.append(h), found.copy_(h)
            if method in _COLLECTS or (method.endswith("_") and not method.startswith("_")):
                links += [(node.func.value, each) for each in node.args]
    return links


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


def _known(loop: ast.For, cells: set[str], beside: bool = False) -> list[tuple[str, ast.Call]]:
    """The cells that a round calls, with the calls; none where one of them is not given what is known before.

    With `beside` they give an output beside their state: ``out, state = self.lstm(x, state)``.
    """
    called = [name for node in _inside(loop) if (name := _cell_of(node, cells))]
    if not called or _ends_or_trains(loop):
        return []
    found = []
    for statement in loop.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        name = _cell_of(statement.value, cells)
        if not name or not isinstance(statement.value, ast.Call):
            continue
        target, call = statement.targets[0], statement.value
        if beside and (not isinstance(target, ast.Tuple) or len(target.elts) != 2):
            return []
        state = target.elts[1] if beside and isinstance(target, ast.Tuple) else target
        if _given(call) != ast.unparse(state).strip("()") or not _only_here(loop, state):
            return []
        if _from_state(loop, statement, call):
            return []
        found.append((name, call))
    return found if len(found) == len(called) else []


def _given(call: ast.Call) -> str:
    """The state that a cell is given, without the parentheses of a tuple; "" for none."""
    given = [*call.args[1:], *(each.value for each in call.keywords if each.arg == "hx")]
    return ast.unparse(given[0]).strip("()") if len(call.args) >= 1 and len(given) == 1 else ""


def _state_of(node: ast.AST) -> str:
    """The state that a call is given, if it is one."""
    return _given(node) if isinstance(node, ast.Call) else ""


def _only_here(loop: ast.For, target: ast.expr) -> bool:
    """Whether names are given the state, and none of them is given anything else in the loop."""
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
    links = _links(list(_inside(loop)))
    return bool(names_in(call.args[0]) & made_of(names_in(statement.targets[0]), links))
