"""Loops whose rounds differ by what they draw only: several samples, noises or dropouts, one after another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.evidence.batch import flop_per_s
from advisor.evidence.bindings import last_name
from advisor.evidence.outside import users_callers
from advisor.evidence.python_loops.called_from import keeps_state
from advisor.evidence.python_loops.loops import SampleLoop, alike_loop
from advisor.evidence.python_loops.reports import root_name
from advisor.evidence.python_loops.rounds import TRAINS, Loop, calls_its_own, independent, line_of, over, scope_at
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
_WORLDS = ("env", "envs", "environment", "game", "simulator", "sim", "world")
_MODES = ("no_grad", "inference_mode", "autocast")
_CLOCKS = ("time", "perf_counter", "monotonic", "perf_counter_ns", "process_time", "timer")


@dataclass(frozen=True)
class DrawLoop:
    """Where it is, and what it costs. ``recurs``: each round holds a loop whose rounds need each other."""

    site: Site
    taken: SampleLoop
    recurs: bool


def draw_loop(evidence: Evidence, text_of: Callable[[str], str]) -> DrawLoop | None:
    """The longest loop of the step, if its rounds are alike, draw, and none needs another by the source.

    Or the loop around it that draws one sample after another, each by as many rounds that do need each other (a future,
    hour by hour). `text_of` gives a file's text, "" where there is none.
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
    around = {tuple(users_callers(detail, row, record)) for row in found.begins}
    callers = list(around.pop())
    if around:
        return None
    place, recurs, taken = _place(callers, text_of), False, found.taken
    if place is None and found.even and taken.times > 1:
        # Once all samples are drawn together, one run of the loop inside is left.
        place, recurs, taken = _place_around(callers, text_of), True, replace(taken, times=taken.rounds / taken.times)
    if place is None:
        return None
    environment = record.environment
    per_thread = max(flop_per_s(environment.cpu_flags), environment.flop_per_s or 0.0)
    rate = _OF_PRODUCTS * per_thread * max(1, environment.intraop_threads)
    products = min(found.flops / rate, found.products_s)
    share = taken.work_share + products / max(taken.forward_s + taken.backward_s, 1e-9)
    return DrawLoop(Site(*place), replace(taken, work_share=min(1.0, share)), recurs)


def _place(callers: list[tuple[str, int]], text_of: Callable[[str], str]) -> tuple[str, int] | None:
    """File and line of the loop in the innermost of these functions that has one; none of several."""
    for path, line in callers:
        loops = loops_that_draw(text_of(path), line)
        if loops:
            return (path, loops[0]) if len(loops) == 1 and loops[0] else None
    return None


def _place_around(callers: list[tuple[str, int]], text_of: Callable[[str], str]) -> tuple[str, int] | None:
    """File and line of the loop that draws around the innermost loop of these functions; none where it needs others."""
    inner = next((at for at, (path, line) in enumerate(callers) if loops_that_draw(text_of(path), line)), None)
    if inner is None or len(loops_that_draw(text_of(callers[inner][0]), callers[inner][1])) > 1:
        return None
    called = ""
    for at, (path, line) in enumerate(callers):
        text = text_of(path)
        if at >= inner and (found := loop_of_samples(text, line, called)) is not None:
            return path, found
        scope = scope_at(text, line)
        if not isinstance(scope, ast.FunctionDef) or not _quiet(scope.body, own=True):
            return None
        called = scope.name
    return None


def loop_of_samples(text: str, function: int, called: str) -> int | None:
    """The line of the only loop in the function that begins there that has another in it, or calls `called`.

    None where it does not count only, or its rounds need each other.
    """
    scope = scope_at(text, function)
    if scope is None:
        return None
    holding = []
    for loop in _of_scope(scope, function):
        inside = [node for each in _body(loop) for node in ast.walk(each)] if not isinstance(loop, ast.While) else []
        calls = (node for node in inside if isinstance(node, ast.Call))
        if any(last_name(each.func) == called for each in calls) if called else _loops_in(inside):
            holding.append(loop)
    apart = [each for each in holding if not isinstance(each, ast.While) and _counts(each) and _apart(text, each)]
    innermost = [each for each in holding if not any(one is not each and _is_in(one, each) for one in holding)]
    return line_of(apart[0]) if len(innermost) == 1 and apart == innermost else None


def _is_in(inner: ast.AST, outer: ast.AST) -> bool:
    return any(each is inner for each in ast.walk(outer))


def _of_scope(scope: ast.AST, function: int) -> list[Loop | ast.While]:
    """The loops in a scope; of a whole file (0) without those of its functions, which are theirs."""
    loops = [node for node in ast.walk(scope) if isinstance(node, (*_ALL, ast.While))]
    if not function:
        functions = (node for node in ast.walk(scope) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        within = {id(each) for one in functions for each in ast.walk(one)}
        loops = [each for each in loops if id(each) not in within]
    return loops


def _loops_in(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, (ast.For, ast.While)) for node in nodes)


def _body(loop: Loop) -> list[ast.AST]:
    return [*loop.body] if isinstance(loop, ast.For) else [loop.elt]


def loops_that_draw(text: str, function: int) -> list[int]:
    """The lines of the loops that count only, in the function that begins at that line (0: outside of all).

    ``for _ in range(k)``, of which no other loop of the function is around or inside. 0 stands for a loop there whose
    rounds need each other: which of them a trace shows cannot be told. [] where `text` does not parse.
    """
    scope = scope_at(text, function)
    if scope is None:
        return []
    loops = _of_scope(scope, function)
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
    names = (node for each in _body(loop) for node in ast.walk(each) if isinstance(node, ast.Name))
    used = {each.id for each in names if isinstance(each.ctx, ast.Load)}
    counted = isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "range"
    return counted and isinstance(target, ast.Name) and target.id not in used


def _apart(text: str, loop: Loop) -> bool:
    """Whether no round needs another: what :func:`independent` says, and nothing of the outside is changed in place."""
    if calls_its_own(loop) or not independent(text, loop):
        return False
    return _quiet(_body(loop))


def _quiet(body: Sequence[ast.AST], own: bool = False) -> bool:
    """Whether these change nothing that was there before, train nothing, ask for no next one, and take no time.

    `own`: they are a function's, whose lists are its own; a loop collects its results in those of others.
    """
    nodes = [node for each in body for node in ast.walk(each)]
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    assigns = [each for each in nodes if isinstance(each, ast.Assign)]
    # Another name for what was there before is no tensor, or list, of its own.
    others = {
        target.id
        for each in assigns
        if isinstance(each.value, (ast.Name, ast.Attribute, ast.Subscript))
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    made = stored - others
    for node in nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return False
        if isinstance(node, ast.keyword) and node.arg in ("out", "generator"):
            return False
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Subscript) and not _fills(node, made, own):
            return False
        if isinstance(node, ast.Try) or (isinstance(node, ast.With) and not _is_a_mode(node)):
            return False
        if isinstance(node, ast.Call) and not _changes_nothing(node, made, own):
            return False
    return True


def _fills(item: ast.Subscript, made: set[str], own: bool) -> bool:
    """Whether nothing is stored in the item, or it is one of a list or a tensor that results may be put into."""
    known = isinstance(item.value, ast.Name) and (not own or item.value.id in made)
    return known or not isinstance(item.ctx, ast.Store)


def _changes_nothing(call: ast.Call, made: set[str], own: bool) -> bool:
    """Whether a call is of nothing that goes on from one to the next; `made`: what is made where it is called."""
    function = call.func
    name = last_name(function)
    if name in TRAINS or name in _CHANGES or name in _CLOCKS or name == "next" or name.endswith(_DIFFERENTIATES):
        return False
    if not isinstance(function, ast.Attribute):
        return True
    root = root_name(function)
    if root in _WORLDS or last_name(function.value) in _WORLDS:
        return False
    if name == "append" and not (isinstance(function.value, ast.Name) and (not own or root in made)):
        return False
    return not (name.endswith("_") and not name.endswith("__")) or root in made | {""}


def _is_a_mode(block: ast.With) -> bool:
    """Whether all that it does is to switch one of torch's modes: whatever is in it may be done for more rows."""
    calls = (each.context_expr for each in block.items)
    return all(isinstance(each, ast.Call) and last_name(each.func) in _MODES for each in calls)
