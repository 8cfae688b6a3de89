"""Loops in Python that call one of several modules alike in each round: heads, experts, members of an ensemble."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.evidence.batch import flop_per_s
from advisor.evidence.bindings import bound, made_of, names_in
from advisor.evidence.loops import SampleLoop, alike_loop
from advisor.evidence.outside import users_callers
from advisor.evidence.rounds import Loop, independent, over
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from advisor.evidence import Evidence


_NESTED = 8  # operators that one of the outermost calls in turn, about
# Of the rate of large products that convolutions of so many groups reach, forward and backward: 0.02 to 0.04 in one
# dimension, 0.06 to 0.07 in two (8 to 32 groups of 4 to 16 filters, torch 2.14, two cores with AVX-512).
_OF_CONVOLUTIONS = 0.035
_ACCUMULATES = "torch::autograd::AccumulateGrad"
# Numbers of a parameter: an optimizer takes as long for calling its operators as for them, at least.
_SMALL = 30_000
# Operators of modules with a weight, and its place among their inputs; behind it the bias.
_WEIGHT = {"aten::linear": 1, **{f"aten::conv{n}d": 1 for n in (1, 2, 3)}, "aten::embedding": 0}


@dataclass(frozen=True)
class ModuleLoop:
    """Where the loop is, what its rounds take, and what they call: the names of their operators.

    ``parameters``: the part of all small parameters that the optimizer updates which these modules have.
    """

    site: Site
    taken: SampleLoop
    operators: frozenset[str]
    parameters: float


def module_loop(evidence: Evidence, text_of: Callable[[str], str]) -> ModuleLoop | None:
    """The longest loop of the step whose rounds are alike, if the source has it as one over modules.

    None of which may need what another has computed. `text_of` gives a file's text, "" where there is none.
    """
    trace, detail, record = evidence.trace, evidence.detail, evidence.record
    if trace is None or detail is None or record is None:
        return None
    found = alike_loop(trace, evidence.steps, evidence.host, evidence.nesting, detail)
    if found is None:
        return None
    taken, rows, flops = found
    places = {_place(users_callers(detail, row, record), text_of) for row in rows}
    place = places.pop()
    if place is None or places:
        return None
    first, body = rows[0], round(taken.operators)
    lane = detail.operators.lane == detail.operators.lane[first]
    behind = lane & (detail.operators.start >= detail.operators.start[first])
    names = [detail.name(int(code)) for code in detail.operators.name[behind][: body * _NESTED]]
    environment = record.environment
    rate = flop_per_s(environment.cpu_flags) * max(1, environment.intraop_threads)
    rate *= _OF_CONVOLUTIONS if any("conv" in each for each in names) else 1.0
    share = taken.work_share + flops / rate / max(taken.forward_s + taken.backward_s, 1e-9)
    taken = replace(taken, work_share=min(1.0, share))
    return ModuleLoop(Site(*place), taken, frozenset(names), _parameters(evidence, rows, taken))


def _parameters(evidence: Evidence, rows: list[int], taken: SampleLoop) -> float:
    """The part of all parameters that the modules of the loop have; 0 where they are large, or nothing is trained."""
    trained, record = evidence.operators.row(_ACCUMULATES), evidence.record
    if trained is None or record is None or trained.count <= 0:
        return 0.0
    if sum(model.parameters for model in record.models if model.calls) > _SMALL * trained.count:
        return 0.0
    calls = evidence.calls
    if calls is None:
        return 0.0
    behind: list[int] = next((each[each.index(rows[0]) :] for each in calls.threads if rows[0] in each), [])
    given = [(calls.name(row), calls.shapes(row)) for row in behind[: round(taken.operators)]]
    own = sum(sum(map(bool, shapes[_WEIGHT[name] : _WEIGHT[name] + 2])) for name, shapes in given if name in _WEIGHT)
    return min(1.0, own * taken.rounds / trained.count)


def _place(callers: list[tuple[str, int]], text_of: Callable[[str], str]) -> tuple[str, int] | None:
    """File and line of the loop over modules in the innermost of these functions that has one."""
    for path, line in callers:
        loops = loops_over_modules(text_of(path), line)
        if loops:
            return (path, loops[0]) if len(loops) == 1 else None
    return None


def loops_over_modules(text: str, function: int) -> list[int]:
    """The lines of the loops in the function that begins at that line (0: outside of all) that call their variable.

    Those whose rounds need no other round's results. [] where `text` does not parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = [node for node in functions if min([node.lineno, *(d.lineno for d in node.decorator_list)]) == function]
    if function and len(inner) != 1:
        return []
    loops = [node for node in ast.walk(inner[0] if function else tree) if isinstance(node, Loop)]
    return sorted(over(loop)[1].lineno for loop in loops if _calls_its_own(loop) and independent(text, loop))


def _calls_its_own(loop: Loop) -> bool:
    """Whether each round calls another module: ``for head in heads: head(x)``, ``heads[i](x)``."""
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else [loop.elt]
    inside = [node for each in body for node in ast.walk(each)]
    own = made_of(names_in(over(loop)[0]), [pair for pair in bound(inside) if isinstance(pair[1], ast.Subscript)])
    return any(_chosen(node.func, own) for node in inside if isinstance(node, ast.Call))


def _chosen(function: ast.expr, own: set[str]) -> bool:
    if isinstance(function, ast.Subscript):
        return isinstance(function.value, (ast.Name, ast.Attribute)) and bool(names_in(function.slice) & own)
    return isinstance(function, ast.Name) and function.id in own
