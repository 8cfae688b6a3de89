"""Loops in Python that go through a linear recurrence: ``h = a * h + b * x[:, t]``, with the same a in each round.

First-order smoothing (PCEN's, of losses, of prices), leaky integrators, discounted sums. Each state is a sum of all
inputs before it, weighted by powers of a: one product with a matrix of these powers gives all states at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.bindings import last_name, names_in
from advisor.evidence.coded import names_like
from advisor.evidence.host import Host
from advisor.evidence.outside import users_functions
from advisor.evidence.python_loops.loops import SampleLoop
from advisor.evidence.python_loops.rounds import around, scope_at
from advisor.evidence.shapes import shapes_at
from advisor.evidence.steps import assign, step_windows
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_LEAST_ROUNDS = 32  # each time: of fewer little is won
_OF_STATES = ("aten::mul", "aten::mul_", "aten::lerp", "aten::lerp_", "aten::add", "aten::addcmul")


@dataclass(frozen=True)
class Recurrence:
    """A loop of the source's, at ``site``: its ``state`` and what that is multiplied by, as they are written."""

    site: Site
    state: str
    factor: str


@dataclass(frozen=True)
class TakenRecurrence:
    """One that a run was seen to go through: ``states`` numbers in each of the ``rounds`` that it has each time, by so
    many different ``factors``: one, or one for each channel.
    """

    recurrence: Recurrence
    loop: SampleLoop
    rounds: float
    states: int
    factors: int


def taken_recurrence(evidence: Evidence, text_of: Callable[[str], str]) -> TakenRecurrence | None:
    """The longest loop of the steps, where the source has it as a linear recurrence; else None."""
    loop, record, detail = evidence.sample_loop, evidence.record, evidence.detail
    if loop is None or record is None or detail is None or not loop.takes:
        return None
    rounds = loop.rounds / max(1.0, loop.times)
    states, factors, rows = _states(detail)
    if rounds < _LEAST_ROUNDS or len(rows) < loop.rounds:
        return None
    middle = np.array([rows[len(rows) // 2]], np.int64)
    path, line = next(iter(users_functions(detail, middle, record).values()), ("", 0))
    found = _in_function(path, line, text_of) if path else None
    return TakenRecurrence(found, loop, rounds, states, factors) if found is not None else None


def _states(detail: Trace) -> tuple[int, int, list[int]]:
    """The numbers that a state has, by what the steps multiply and add most often, those of what it is multiplied by,
    and the operators that do.
    """
    steps, start = step_windows(detail), detail.operators.start
    host = Host(detail, steps)
    named = names_like(detail, detail.operators.name, lambda name: name in _OF_STATES)
    named &= ~host.backward.union(host.optimizer).union(host.loader).contains(start)
    rows = np.flatnonzero(named & (assign(steps, start) >= 0))
    sizes: dict[int, list[int]] = {}
    for row in rows.tolist():
        if shapes := [shape for shape in shapes_at(detail, row) if shape]:
            sizes.setdefault(max(map(prod, shapes)), []).append(row)
    states, there = max(sizes.items(), key=lambda each: len(each[1]), default=(0, []))
    # A number has no dimensions, or is none of the inputs with a shape.
    factors = [min(map(prod, shapes)) for row in there if len(shapes := shapes_at(detail, row)) > 1]
    return states, max((each for each in factors if each < states), default=1), there


def _in_function(path: str, line: int, text_of: Callable[[str], str]) -> Recurrence | None:
    """The only one in the function that begins at a line of a file; at 0 in what is in no function."""
    text = text_of(path)
    scope = scope_at(text, line)
    loops = [each for each in ast.walk(scope) if isinstance(each, ast.For)] if scope is not None else []
    places = [Site(path, each.body[0].lineno, function=getattr(scope, "name", "")) for each in loops]
    found = [each for place in places if (each := recurrence_at(text, place)) is not None]
    return found[0] if len(found) == 1 else None


def recurrence_at(text: str, site: Site) -> Recurrence | None:
    """The recurrence that the innermost ``for`` around a line goes through; None where its rounds do anything else."""
    loop = around(text, site.line)
    if not isinstance(loop, ast.For) or loop.orelse:
        return None
    changing = names_in(loop.target) | set(_stored(loop))
    found = [each for node in loop.body if (each := _linear(node, changing)) is not None]
    others = [node for node in loop.body if _linear(node, changing) is None]
    if len(found) != 1 or not all(map(_keeps, others)):
        return None
    kept = {name for node in others for name in names_in(node)} - changing
    if any(kept & names_in(node.value) for node in loop.body if node not in others and isinstance(node, ast.Assign)):
        return None  # what is kept is read again: out[-1]
    state, factor = found[0]
    return Recurrence(Site(site.file, loop.lineno, function=site.function), state, factor)


def _linear(node: ast.stmt, changing: set[str]) -> tuple[str, str] | None:
    """State and factor of ``h = a * h + b * x``; None of any other statement."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return None
    state = node.targets[0].id
    if isinstance(node.value, ast.Call):
        return _interpolated(node.value, state, changing)
    terms = list(_terms(node.value))
    own = [each for each, _ in terms if state in names_in(each)]
    if len(own) != 1 or not isinstance(own[0], ast.BinOp) or not isinstance(own[0].op, ast.Mult):
        return None
    factors = [each for each in _factors(own[0]) if not (isinstance(each, ast.Name) and each.id == state)]
    whole, minus = list(_factors(own[0])), any(each is own[0] and negative for each, negative in terms)
    if len(factors) != len(whole) - 1 or any(names_in(each) & changing or _calls(each) for each in factors):
        return None
    others = [each for each, _ in terms if each is not own[0]]
    factor = " * ".join(map(ast.unparse, factors))
    return (state, f"-({factor})" if minus else factor) if others else None


def _interpolated(call: ast.Call, state: str, changing: set[str]) -> tuple[str, str] | None:
    """The same of ``torch.lerp(h, x, w)`` and ``h.lerp(x, w)``."""
    if last_name(call.func) != "lerp" or call.keywords:
        return None
    given = list(call.args) if len(call.args) == 3 else [getattr(call.func, "value", call.func), *call.args]
    if len(given) != 3 or not isinstance(given[0], ast.Name) or given[0].id != state:
        return None
    if state in names_in(given[1]) or names_in(given[2]) & changing or _calls(given[2]):
        return None
    return state, f"1 - {ast.unparse(given[2])}"


def _terms(node: ast.expr, negative: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """The terms of a sum, and whether each is subtracted."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _terms(node.left, negative)
        yield from _terms(node.right, negative is not isinstance(node.op, ast.Sub))
    else:
        yield node, negative


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield node


def _calls(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _stored(loop: ast.For) -> Iterator[str]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _keeps(node: ast.stmt) -> bool:
    """Whether a statement only keeps a state: ``states.append(h)``, ``out[:, t] = h``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        return last_name(call.func) == "append" and all(isinstance(each, ast.Name) for each in call.args)
    return (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Subscript)
        and isinstance(node.value, ast.Name)
    )
