"""Loops in Python that call one of several modules alike in each round: heads, experts, members of an ensemble."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.evidence.batch import flop_per_s
from advisor.evidence.outside import users_callers
from advisor.evidence.python_loops.loops import SampleLoop, alike_loop
from advisor.evidence.python_loops.rounds import Loop, calls_its_own, independent, over, scope_at
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.shapes import Shape


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
    found, calls = alike_loop(trace, evidence.steps, evidence.host, evidence.nesting, detail), evidence.calls
    if found is None or calls is None:
        return None
    places = {_place(users_callers(detail, row, record), text_of) for row in found.begins}
    place = places.pop()
    if place is None or places:
        return None
    names = calls.names_in(found.round)
    environment, taken = record.environment, found.taken
    rate = flop_per_s(environment.cpu_flags) * max(1, environment.intraop_threads)
    rate *= _OF_CONVOLUTIONS if any("conv" in each for each in names) else 1.0
    share = taken.work_share + found.flops / rate / max(taken.forward_s + taken.backward_s, 1e-9)
    taken = replace(taken, work_share=min(1.0, share))
    given = [(calls.name(row), calls.shapes(row)) for row in found.round.tolist()]
    return ModuleLoop(Site(*place), taken, names, _parameters(evidence, given, taken.rounds))


def _parameters(evidence: Evidence, given: list[tuple[str, list[Shape]]], rounds: float) -> float:
    """The part of all parameters that the modules of the loop have; 0 where they are large, or nothing is trained.

    `given`: the operators of a round, and the shapes of their inputs.
    """
    trained, record = evidence.operators.row(_ACCUMULATES), evidence.record
    if trained is None or record is None or trained.count <= 0:
        return 0.0
    if sum(model.parameters for model in record.models if model.calls) > _SMALL * trained.count:
        return 0.0
    own = sum(sum(map(bool, shapes[_WEIGHT[name] : _WEIGHT[name] + 2])) for name, shapes in given if name in _WEIGHT)
    return min(1.0, own * rounds / trained.count)


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
    scope = scope_at(text, function)
    loops = [node for node in ast.walk(scope) if isinstance(node, Loop)] if scope is not None else []
    return sorted(over(loop)[1].lineno for loop in loops if calls_its_own(loop) and independent(text, loop))
