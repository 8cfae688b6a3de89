"""A model that is asked for one sample after another beside what it learns: a rollout, robot by robot."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.bindings import bound, made_of, names_in
from advisor.evidence.coded import names_like
from advisor.evidence.python_loops.called_from import keeps_state, loop_around, loop_of_each
from advisor.evidence.python_loops.rounds import LEAST_CALLS, MOSTLY, around
from advisor.evidence.steps import assign
from advisor.harness import layout

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord, Site

# Between two calls that belong together Python works on what they gave: of the time there the operators take a third or
# more. What is longer is something else: a simulator, say.
_BESIDE_OPERATORS = 3.0
_CALLING_NS = 50_000  # an operator that takes less of its own, under the profiler, was called for little more than that
_GIVES = 3  # state, reward and whether that was the end: so much at least an environment's step gives
# Methods of an object that a round may call without changing what the next one reads.
_COLLECTS = frozenset(("append", "extend", "add", "insert"))


@dataclass(frozen=True)
class Asked:
    """The loop, its calls of the model in a step, and their seconds as traced, with what is computed between them.

    `calling`: the share of their operators' own time in those that are so short that to call them is what they take.
    `each`: the loop goes over objects that each ask several times, one question after the other. `plays`: it is one
    environment's, which has to have the answer before there is another question.
    """

    site: Site
    calls: float
    seconds: float
    calling: float
    each: bool = False
    plays: bool = False


def asked_one_by_one(evidence: Evidence, text_of: Callable[[str], str]) -> Asked | None:
    """The loop that makes most of a step's calls, each without gradients and for a single sample.

    None where a round needs what another one computed, as far as the source tells (:func:`loop_around`), or the model
    keeps a state. `text_of` gives a file's text, "" where there is none.
    """
    record, most = evidence.record, _asked_most(evidence)
    if record is None or most is None or most.details.get("grad", True):
        return None
    if not _single(most, _calls_of_models(record)):
        return None
    loop = loop_around(most.called_from, text_of)
    each = loop is None
    loop = loop or loop_of_each(most.called_from, text_of)
    own = (pair for model in record.models for pair in model.own.items())
    if loop is None or _plays(text_of(loop.file), loop.line):
        return None
    if any(keeps_state(text_of(path), cls) for cls, path in own):
        return None
    return _asked(evidence, Asked(loop, most.calls_per_step, 0.0, 0.0, each))


def asked_by_environment(evidence: Evidence, text_of: Callable[[str], str]) -> Asked | None:
    """The loop in which one environment takes its steps, the model asked for each of them, for a single state.

    Told by the source: each round of the innermost loop around the call takes what ``step(action)`` gives apart, as
    Gym's environments have it, in three or more, and the action is made of the model's answer. `text_of` gives a file's
    text, "" where there is none.
    """
    record, most = evidence.record, _asked_most(evidence)
    if record is None or most is None or not _one_state(most, record):
        return None
    for frame in most.called_from:
        inside = around(text_of(frame.file), frame.line)
        if isinstance(inside, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not isinstance(inside, (ast.For, ast.While)) or not _plays_alone(inside, frame):
            return None
        loop = replace(frame, line=inside.lineno, column=None, end_line=None, end_column=None)
        asked = Asked(loop, most.calls_per_step, 0.0, 0.0, each=True, plays=True)
        return _asked(evidence, asked, differentiated=_differentiated(evidence))
    return None


def _one_state(asked: CallSite, record: RunRecord) -> bool:
    """Whether a call gets the state of one environment: a vector, or one in a batch of one.

    A vector of whole numbers may as well be the states of several, and three dimensions a batch of sequences.
    """
    shape = asked.details.get("shape")
    if not isinstance(shape, list) or len(shape) == 3:
        return False
    if not _single(asked, _calls_of_models(record)) and len(shape) != 1:
        return False
    cls = asked.details.get("module")
    first = [each.inputs[0].dtype for each in record.models if each.cls == cls and each.inputs]
    return len(shape) > 1 or not any("int" in dtype for dtype in first)


def _plays_alone(loop: ast.For | ast.While, frame: Site) -> bool:
    """Whether each round has one environment take a step, by an action that is made of what `frame` calls there."""
    steps = [each for each in ast.walk(loop) if isinstance(each, ast.Assign) and _steps_an_environment(each)]
    if len(steps) != 1 or not isinstance(call := steps[0].value, ast.Call):
        return False
    lines = [each for each in ast.walk(loop) if isinstance(each, ast.stmt) and _holds(each, frame.line)]
    asking = min(lines, key=lambda each: (each.end_lineno or 0) - each.lineno, default=None)
    if asking is steps[0]:  # step(policy(state)), and no solver's step that calls a model
        one_line = call.func.end_lineno == call.end_lineno == frame.line
        within = (call.func.end_col_offset or 0) < (frame.column or 0) < (frame.end_column or 0)
        return one_line and within and (frame.end_column or 0) < (call.end_col_offset or 0)
    answers = set().union(*(names_in(target) for target, _ in bound([asking]))) if asking is not None else set()
    given = set().union(*(names_in(each) for each in call.args))
    return bool(made_of(answers, bound(ast.walk(loop))) & given)


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or 0)


def _differentiated(evidence: Evidence) -> bool:
    """Whether a backward goes through nearly all of the traced forwards, not through those of an update alone."""
    trace, rows = evidence.trace, evidence.host.graph_rows
    forwards = names_like(trace, trace.annotations.name, layout.FORWARD_RANGE.__eq__)
    forwards &= assign(evidence.steps, trace.annotations.start) >= 0
    start, end = trace.annotations.start[forwards], trace.annotations.end[forwards]
    made = np.sort(trace.operators.start[rows])
    through = np.searchsorted(made, end) > np.searchsorted(made, start)
    return bool(len(start)) and float(through.mean()) >= MOSTLY


def _calls_of_models(record: RunRecord) -> list[CallSite]:
    return [each for each in record.call_sites if each.kind == "Module.call"]


def _asked_most(evidence: Evidence) -> CallSite | None:
    """The call that is nearly all of a step's calls of models, where there are several of it."""
    sites = _calls_of_models(evidence.record) if evidence.record is not None else []
    most = max(sites, key=lambda each: each.calls_per_step, default=None)
    if most is None or not len(evidence.steps):
        return None
    least = max(LEAST_CALLS, MOSTLY * sum(each.calls_per_step for each in sites))
    return most if most.calls_per_step >= least else None


def _asked(evidence: Evidence, asked: Asked, differentiated: bool = False) -> Asked | None:
    """What is known of it, with the seconds of all calls of the model in a step; None where few were traced.

    `differentiated`: a backward goes through them.
    """
    trace, steps = evidence.trace, evidence.steps
    rows = names_like(trace, trace.annotations.name, layout.FORWARD_RANGE.__eq__)
    rows &= assign(steps, trace.annotations.start) >= 0
    order = np.argsort(trace.annotations.start[rows])
    start, end = trace.annotations.start[rows][order], trace.annotations.end[rows][order]
    if len(start) < LEAST_CALLS:
        return None
    busy = evidence.host.operators.within(end[:-1], start[1:])
    between = np.minimum(np.maximum(start[1:] - end[:-1], 0), _BESIDE_OPERATORS * busy)
    # Of what is done between two questions the environments' own part stays when they are asked together. Half of it in
    # one rollout of eight, which gained 2.62, where all of it and none of it would have made 4.0 and 1.4.
    seconds = float((end - start).sum() + between.sum() * (0.5 if asked.each else 1.0)) / 1e9 / len(steps)
    if differentiated:  # their nodes are as many, and as small
        seconds += float(evidence.host.backward.within(steps.start, steps.end).sum()) / 1e9 / len(steps)
    return replace(asked, seconds=seconds, calling=_calling(evidence))


def _steps_an_environment(node: ast.Assign) -> bool:
    """``state, reward, done, info = env.step(action)``."""
    if not isinstance(node.value, ast.Call):
        return False
    called, targets = node.value.func, node.targets[0]
    several = isinstance(targets, (ast.Tuple, ast.List)) and len(targets.elts) >= _GIVES
    alone = len(node.value.args) == 1 and not node.value.keywords
    # A solver's step is given what it then gives, y, error, h = solver.step(y); step(policy(y)) is given an answer.
    given = node.value.args[0] if alone else None
    goes_on = given is not None and not isinstance(given, ast.Call) and names_in(targets) & names_in(given)
    return several and alone and not goes_on and isinstance(called, ast.Attribute) and called.attr == "step"


def _calling(evidence: Evidence) -> float:
    """The share of the forwards' operators' own time in those that mostly take less than _CALLING_NS."""
    operators, own_ns = evidence.trace.operators, evidence.nesting.self_ns
    inside = evidence.host.forward.contains(operators.start) & (assign(evidence.steps, operators.start) >= 0)
    names, taken = operators.name[inside], own_ns[inside]
    short = sum(
        float(taken[names == name].sum()) for name in np.unique(names) if np.median(taken[names == name]) < _CALLING_NS
    )
    return short / max(1.0, float(taken.sum()))


def _plays(text: str, line: int) -> bool:
    """Whether a round of the loop at `line` tells an object what the next one may read: ``table.play()``."""
    loop = next(
        (
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.For) and line in (node.lineno, node.iter.lineno)
        ),
        None,
    )
    told = [each.value for each in ast.walk(loop) if isinstance(each, ast.Expr)] if loop is not None else []
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr not in _COLLECTS
        for each in told
    )


def _single(asked: CallSite, sites: list[CallSite]) -> bool:
    """Whether a call gets one sample: a batch of one, or what lacks the batch's dimension that another call gives."""
    shape = asked.details.get("shape")
    if not isinstance(shape, list) or not shape:
        return False
    others = [each.details.get("shape") for each in sites if each.details.get("module") == asked.details.get("module")]
    batched = any(isinstance(each, list) and each[1:] == shape and len(each) > 1 for each in others)
    return batched or (shape[0] == 1 and len(shape) > 1)
