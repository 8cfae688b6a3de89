"""Loops whose rounds differ by what they draw only: several samples, noises or dropouts, one after another."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.evidence.batch import flop_per_s
from advisor.evidence.bindings import names_in
from advisor.evidence.outside import users_callers
from advisor.evidence.python_loops.called_from import keeps_state
from advisor.evidence.python_loops.loops import SampleLoop, alike_loop
from advisor.evidence.python_loops.reports import root_name
from advisor.evidence.python_loops.rounds import Loop, calls_its_own, independent, line_of, over, scope_at
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_DRAWS = frozenset(
    f"aten::{name}"
    for name in ("randn", "rand", "randint", "randn_like", "rand_like", "randint_like", "normal", "normal_", "uniform_",
                 "bernoulli", "bernoulli_", "dropout", "native_dropout", "exponential_", "multinomial", "randperm",
                 "random_", "poisson", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "log_normal_",
                 "cauchy_", "geometric_")
)  # fmt: skip
# Statistics of a batch are those of all rounds once these are one; and a state goes through a recurrent layer's rounds.
_OF_A_BATCH = frozenset(("aten::batch_norm", "aten::native_batch_norm", "aten::lstm", "aten::gru"))
# Of the rate of large products that small ones reach, by which the products of a round are taken to stay: conservative.
_OF_PRODUCTS = 0.35
_DIFFERENTIATES = ("grad", "backward", "jvp", "vjp", "functional_call")
_CHANGES = frozenset(
    ("extend", "insert", "pop", "popleft", "appendleft", "push", "remove", "clear", "update", "setdefault", "put",
     "write", "sample_batch", "reset", "advance", "seed", "manual_seed", "synchronize")
)  # fmt: skip
_CLOCKS = ("time", "perf_counter", "monotonic", "perf_counter_ns", "process_time", "timer")


def draw_loop(evidence: Evidence, text_of: Callable[[str], str]) -> tuple[Site, SampleLoop] | None:
    """The longest loop of the step, if its rounds are alike, draw, and none needs another by the source.

    `text_of` gives a file's text, "" where there is none.
    """
    trace, detail, record = evidence.trace, evidence.detail, evidence.record
    if detail is None or record is None:
        return None
    found, calls = alike_loop(trace, evidence.steps, evidence.host, evidence.nesting, detail), evidence.calls
    if found is None or calls is None:
        return None
    names = calls.names_in(found.round)
    if not names & _DRAWS or names & _OF_A_BATCH:
        return None
    if any(keeps_state(text_of(path), cls) for model in record.models for cls, path in model.own.items()):
        return None
    places = {_place(users_callers(detail, row, record), text_of) for row in found.begins}
    place = places.pop()
    if place is None or places:
        return None
    environment, taken = record.environment, found.taken
    rate = _OF_PRODUCTS * flop_per_s(environment.cpu_flags) * max(1, environment.intraop_threads)
    share = taken.work_share + found.flops / rate / max(taken.forward_s + taken.backward_s, 1e-9)
    return Site(*place), replace(taken, work_share=min(1.0, share))


def _place(callers: list[tuple[str, int]], text_of: Callable[[str], str]) -> tuple[str, int] | None:
    """File and line of the loop in the innermost of these functions that has one; none of several."""
    for path, line in callers:
        loops = loops_that_draw(text_of(path), line)
        if loops:
            return (path, loops[0]) if len(loops) == 1 and loops[0] else None
    return None


def loops_that_draw(text: str, function: int) -> list[int]:
    """The lines of the loops that count only, in the function that begins at that line (0: outside of all).

    ``for _ in range(k)``, of which no other loop of the function is around or inside. 0 stands for a loop there whose
    rounds need each other: which of them a trace shows cannot be told. [] where `text` does not parse.
    """
    scope = scope_at(text, function)
    if scope is None:
        return []
    loops = [node for node in ast.walk(scope) if isinstance(node, (*_ALL, ast.While))]
    if not function:  # those of functions are theirs
        functions = (node for node in ast.walk(scope) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        within = {id(each) for one in functions for each in ast.walk(one)}
        loops = [each for each in loops if id(each) not in within]
    innermost = [
        each
        for each in loops
        if not any(one is not each and isinstance(one, (*_ALL, ast.While)) for one in ast.walk(each))
    ]
    found = []
    for loop in innermost:
        if isinstance(loop, ast.While):
            found.append(0)
        elif _counts(loop) and _apart(text, loop):
            found.append(line_of(loop))
        elif isinstance(loop, ast.For) and not independent(text, loop):
            found.append(0)
    return sorted(found)


_ALL = (ast.For, ast.ListComp, ast.GeneratorExp)


def _counts(loop: Loop) -> bool:
    """``for _ in range(k)``: its rounds make nothing of their number."""
    target, source = over(loop)
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else [loop.elt]
    used = set[str]().union(*map(names_in, body))
    counted = isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "range"
    return counted and isinstance(target, ast.Name) and target.id not in used


def _apart(text: str, loop: Loop) -> bool:
    """Whether no round needs another: what :func:`independent` says, and nothing of the outside is changed in place."""
    if calls_its_own(loop) or not independent(text, loop):
        return False
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else [loop.elt]
    nodes = [node for each in body for node in ast.walk(each)]
    own = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg in ("out", "generator"):
            return False
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            return False
        if isinstance(node, (ast.With, ast.Try)) or not isinstance(node, ast.Call):
            if isinstance(node, (ast.With, ast.Try)):
                return False
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CHANGES or name in _CLOCKS or name.endswith(_DIFFERENTIATES):
            return False
        in_place = name.endswith("_") and not name.endswith("__") and isinstance(node.func, ast.Attribute)
        if in_place and root_name(node.func) not in own | {""}:
            return False
    return True
