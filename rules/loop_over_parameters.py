"""A loop in Python goes over the model's parameters in each step, and calls a few small operators for each of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.python_loops.parameter_loops import (
    AVERAGE,
    GRADIENTS,
    PENALTY,
    SUMS,
    TOTAL,
    UPDATE,
    VALUES,
    Loop,
    averaged,
    loop_of,
    loops_over_parameters,
)
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.bindings import last_name
from advisor.evidence.facts import OTHER
from advisor.evidence.outside import LEAST_LOOKING_ON, looks_on
from advisor.evidence.python_loops.parameter_loops import ParameterLoop, parameter_loops
from advisor.evidence.python_loops.rounds import scope_at
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import WIDEST, Advice, Argument, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

# The likely gain that is told of: shares of what makes many small calls are not known better. An average can be
# edited and tried; beside other programs two scripts had 1.07 and 1.15 of it predicted, and gained 1.1 and more.
_LEAST, _LEAST_OF_AVERAGE = 1.1, 1.07
# What is left of a loop: best, likely, worst. Measured with torch 2.14, one thread, per tensor of 48 with up to 64 x 64
# elements: norm().item() 8.5 us, _foreach_norm and one tolist() 5.2; clipping and total norms hardly less; an SGD with
# momentum written by hand 18 us, the fused one 3 to 4, with _foreach_mul_ and _foreach_add_ 8.4.
_LEFT = {
    UPDATE: (0.15, 0.25, 0.5),
    GRADIENTS: (0.5, 0.75, 0.95),
    VALUES: (0.02, 0.1, 0.5),
    TOTAL: (0.5, 0.7, 0.95),
    SUMS: (0.4, 0.55, 0.8),
    PENALTY: (0.4, 0.6, 0.85),
}
# Likewise: the squares and their backward took 58 us, the optimizer's weight_decay 3 to 5.
_LEFT_OF_SQUARES = (0.05, 0.1, 0.2)
# Of an average, over the operators of a round: mul_ and add_ took 14 to 16 us, lerp_ 6.4 to 8.4, _foreach_lerp_ 4.7 to
# 5.2.
_LEFT_OF_AVERAGE = (0.5, 0.65, 0.9)
# Calling an operator for one parameter took 4 to 9 us there, with what Python does between two: three times as much on
# a slow machine. What takes longer works on elements.
_MOST_OF_A_CALL_S = 25e-6
_FROZEN = "frozen"
_MOVES = ("lerp_", "mul_")  # what a script calls the operators that move an average
_LEAST_UNTRAINED = 0.3  # of the elements that a loop averages
_MANY_CALLS = 4  # per parameter: an update of so many, in a function of its own, is fused-optimizer's matter
_CALLBACKS = 2.0  # times what the loops take, at most, is what a callback takes that has them
_BASIS = "prior: what is left of such a loop once one call does it for all, measured on a CPU"

_TEXTS = {
    AVERAGE: (
        "Average the weights in one call, not one parameter after the other {at}: "
        "torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay) under torch.no_grad(), "
        "or have torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) keep the "
        "average.",
        "whether both have the same tensors in the same order cannot be told from the source",
    ),
    _FROZEN: (
        "Average only what is trained {at}: the frozen weights of both models are the same and stay so. Go through the "
        "parameters with requires_grad, copy the buffers of batch norms, and let both models share the frozen weights.",
        "which weights are unfrozen later in the training only its author can tell",
    ),
    "squares": (
        "Leave the penalty {at} to the optimizer: weight_decay=2 * lam does to the weights what lam times the sum of "
        "their squares does, in SGD, Adam and RMSprop (AdamW's weight_decay is another one); of a part of them, in a "
        "parameter group of its own. Or add its gradient after "
        "backward(), in one call: torch._foreach_add_([p.grad for p in params], params, alpha=2 * lam).",
        "the loss then no longer has the penalty in it, and whether something reads it only its author can tell",
    ),
    PENALTY: (
        "Compute the penalty {at} for all parameters at once: torch.stack(torch._foreach_norm(params, 1)).sum() for "
        "absolute values, torch._foreach_norm(params) for norms, or one operator over "
        "torch.nn.utils.parameters_to_vector(params).",
        "which norm it is cannot be told from the source with certainty",
    ),
    UPDATE: (
        "Have an optimizer of torch.optim update the parameters instead of the loop {at}: torch.optim.SGD(params, lr, "
        "momentum=0.9, fused=True), say; else write it for all at once: torch._foreach_mul_(velocities, momentum), "
        "torch._foreach_add_(velocities, grads), torch._foreach_add_(params, velocities, alpha=-lr).",
        "whether one of torch.optim's computes the same update only its author can tell",
    ),
    GRADIENTS: (
        "Change all gradients at once, not one after the other {at}: torch._foreach_mul_(grads, factor), "
        "torch._foreach_clamp_min_ and torch._foreach_clamp_max_, torch.nn.utils.clip_grad_norm_ or "
        "torch.nn.utils.clip_grad_value_.",
        "what the loop computes only its author can say in other words",
    ),
    VALUES: (
        "Compute what the loop {at} logs every so many steps (if step % 50 == 0:). Where each step needs norms, take "
        "all at once, and read them once: torch.stack(torch._foreach_norm(tensors)).tolist().",
        "whether something needs them in each step only their author can tell",
    ),
    TOTAL: (
        "Compute the norm of all parameters or gradients at once, not in the loop {at}: "
        "torch.nn.utils.get_total_norm(grads), or take what torch.nn.utils.clip_grad_norm_(params, limit) returns; for "
        "a log, every so many steps will do.",
        "what else uses the parts only their author can tell",
    ),
    SUMS: (
        "Write the loop {at} for all tensors at once: torch._foreach_mul_(sums, decay), torch._foreach_add_(sums, "
        "grads), torch._foreach_addcmul_(sums, grads, grads), and the like.",
        "what the loop computes only its author can say in other words",
    ),
}
_SAID = {
    AVERAGE: "averages weights",
    PENALTY: "adds up a penalty on the weights",
    UPDATE: "updates the weights",
    GRADIENTS: "changes gradients",
    VALUES: "reads figures of weights or gradients",
    TOTAL: "adds up norms",
    SUMS: "adds up gradients",
}


class LoopOverParameters(Rule):
    """A loop in Python over the model's parameters calls a few small operators for each of them, in each step.

    An average of the weights (EMA), a penalty on them, an update written by hand, norms for a log: a model of a hundred
    tensors pays for hundreds of calls, however small the tensors are, and a penalty for as many nodes of the backward.
    PyTorch has one call for all of them: ``torch._foreach_lerp_`` and its like for lists of tensors,
    ``AveragedModel(..., multi_avg_fn=get_ema_multi_avg_fn(decay))`` for averages, ``weight_decay=`` for the squares of
    the weights, ``get_total_norm`` for norms, a fused optimizer for updates; and a log needs them every so many steps
    only. Reported where a trace of the steps shows the operators, on a CPU, and the source the loop.

    When not: the tensors are so large that the calls hardly matter; the loop does something else for each of them; the
    two models do not have the same tensors in the same order. An average by ``lerp`` is rounded differently in the last
    digit.

    Source: PyTorch docs, ``torch.optim``, "Algorithms" (foreach and fused against for-loop), "Custom averaging
    strategies" (``get_ema_multi_avg_fn``); ``torch.nn.utils.get_total_norm``. What is left of a loop is a prior, from
    measurements on a CPU.
    """

    id = "loop-over-parameters"
    title = "Go over all parameters in one call, not in a Python loop"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
            return
        values: list[tuple[ParameterLoop, Loop]] = []
        for found in parameter_loops(evidence):
            loop = _in_source(found)
            averages = loop.kind == AVERAGE if loop is not None else found.averages
            if averages and found.untrained >= _LEAST_UNTRAINED and _has_frozen(evidence):
                yield from _frozen(evidence, found, loop)
            elif loop is None:
                continue
            elif loop.kind == VALUES:
                values.append((found, loop))
            elif not _is_optimizers(evidence, found, loop):
                yield from _finding(evidence, [(found, loop)])
        if not _in_a_callback(evidence, values):
            yield from _finding(evidence, values)

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        kind = str(finding.parameters.get("kind", AVERAGE))
        text, why = _TEXTS.get(kind, _TEXTS[SUMS])
        text = text.format(at=f"at {at(finding.site)}" if finding.site is not None else "in your script")
        if finding.site is None or kind != AVERAGE:
            return Advice(text, why)
        if not finding.parameters.get("alike"):
            return Advice(text, "its tensors are of several shapes or types")
        drafts, line = Drafts(sources), finding.site.line
        draft = drafts[finding.site.file]
        there = [each for each in loops_over_parameters(draft) if each.line == line]
        if len(there) != 1 or not averaged(draft, there[0], bool(finding.parameters.get("whole"))):
            return Advice(text, why)
        return edited(drafts, text, f"Average all weights in one call at {at(finding.site)}, by torch._foreach_lerp_.")

    EXAMPLES = (
        Example(
            before="""
import torch

@torch.no_grad()
def update(average, model, decay):
    # the teacher follows slowly
    for kept, new in zip(average.parameters(), model.parameters()):  # <-
        kept.mul_(decay).add_(new, alpha=1 - decay)
""",
            after="""
import torch

@torch.no_grad()
def update(average, model, decay):
    # the teacher follows slowly
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
""",
            parameters={"kind": AVERAGE, "alike": True, "whole": True},
        ),
        Example(
            before="""
from torch import nn

class Trainer:
    def follow(self):
        for new, kept in zip(self.net.parameters(), self.teacher.parameters()):  # <-
            kept.data.mul_(0.99)
            kept.data.add_(new.data * 0.01)
        self.steps += 1
""",
            after="""
from torch import nn
import torch

class Trainer:
    def follow(self):
        torch._foreach_lerp_([kept.data for kept in self.teacher.parameters()], \
[new.data for new in self.net.parameters()], 0.01)
        self.steps += 1
""",
            parameters={"kind": AVERAGE, "alike": True, "whole": True},
        ),
        Example(
            before="""
penalty = 0.0
for weight in net.parameters():  # <-
    penalty = penalty + (weight ** 2).sum()
loss = loss + 1e-4 * penalty
""",
            after="",
            parameters={"kind": "squares"},
            advice="weight_decay=2 * lam",
        ),
        Example(
            before="for name, kept in ours.items():  # <-\n    kept.lerp_(theirs[name], weight)\n",
            after="",
            parameters={"kind": _FROZEN},
            advice="only what is trained",
        ),
        Example(
            before="norms = {name: p.grad.norm().item() for name, p in net.named_parameters()}  # <-\n",
            after="",
            parameters={"kind": VALUES},
            advice="if step % 50 == 0",
        ),
    )
    LEAVES_ALONE = tuple(
        Example(
            f"import torch\nfor p, q in zip({over}):  # <-\n    {body}\n",
            "",
            {"kind": AVERAGE, "alike": alike},
        )
        for over, body, alike in (
            ("a.parameters(), b.parameters()", "q.mul_(d).add_(p, alpha=1 - d)", False),
            ("a.parameters(), b.parameters()", "q.mul_(d).add_(p, alpha=1 - e)", True),
            ("a.parameters(), b.parameters()", "q.mul_(0.9).add_(p, alpha=0.2)", True),
            ("a.parameters(), b.parameters()", "q.data = d * q.data + (1 - d) * p.data", True),  # may share memory
            ("a.parameters(), b.parameters()", "q.mul_(d).add_(p, alpha=1 - d); n += 1", True),
            ("a.parameters(), b.parameters()", "q.lerp_(p, p.std())", True),  # a weight of each one's own
            ("a.parameters(), b.parameters()", "q.lerp_(q, 0.1)", True),
            ("a.parameters(), b.parameters()", "q[0].lerp_(p[0], 0.1)", True),
            ("a.state_dict().values(), b.state_dict().values()", "q.lerp_(p, 0.1)", True),  # buffers, too
            ("a.parameters(), b.parameters()", "q.lerp_(p, 0.1)\nprint(p)", True),
        )
    )


def _has_frozen(evidence: Evidence) -> bool:
    return any(each.frozen for each in evidence.record.models) if evidence.record is not None else False


def _line_of_average(path: str, line: int) -> int:
    """Where the function that begins at `line` moves an average, as far as its calls tell; else that line."""
    scope = scope_at(text_of(path), line)
    calls = [each for each in ast.walk(scope) if isinstance(each, ast.Call)] if scope is not None else []
    return min((each.lineno for each in calls if last_name(each.func) in _MOVES), default=max(1, line))


def _frozen(evidence: Evidence, found: ParameterLoop, loop: Loop | None) -> Iterator[Finding]:
    """An average of weights that never change, which is what they are."""
    saved = found.seconds * found.untrained
    gain = Gain.of(evidence.what_if(Change(remove_host_s=saved)))
    if gain.likely < _LEAST or not evidence.step_s:
        return
    site = Site(found.function[0], loop.line if loop is not None else _line_of_average(*found.function))
    yield Finding(
        rule=LoopOverParameters.id,
        title="Average only the weights that are trained",
        summary=f"The loop at {at(site)} averages weights in every step, {found.seconds / evidence.step_s:.0%} of it, "
        f"and {found.untrained:.0%} of their numbers are of weights that are never trained: their average is what they "
        "are.",
        gain=gain,
        evidence={
            "loop_s": found.seconds,
            "untrained_share": found.untrained,
            "rounds_per_step": found.rounds,
            "step_s": evidence.step_s,
        },
        site=site,
        parameters={"kind": _FROZEN},
        safety=Safety.EXACT,
    )


def _in_a_callback(evidence: Evidence, values: list[tuple[ParameterLoop, Loop]]) -> bool:
    """Whether they are what a callback does for the log, as `blocking-work-between-steps` tells of it."""
    found = evidence.outside
    if found is None or not looks_on(found, text_of(found.file)):
        return False
    if min(found.share, evidence.breakdown.share(OTHER)) < LEAST_LOOKING_ON:
        return False
    if any(each.function[0] != found.file for each, _ in values):
        return False
    return sum(each.seconds for each, _ in values) * _CALLBACKS >= found.share * (evidence.step_s or 0.0)


def _in_source(found: ParameterLoop) -> Loop | None:
    """The loop of that function which the operators are called in."""
    path, line = found.function
    try:
        loop = loop_of(Draft(Sources().source(path)), line, sorted(set(found.operators)))
    except AdvisorError:
        return None
    if loop is not None and loop.kind == PENALTY and not found.backward_s:
        return replace(loop, kind=TOTAL, squares=False)  # no part of the loss: a total that is only looked at
    return loop


def _is_optimizers(evidence: Evidence, found: ParameterLoop, loop: Loop) -> bool:
    """Whether fused-optimizer tells of it: of a function that updates all parameters, where there is no optimizer."""
    updating = evidence.record is not None and any(each.steps for each in evidence.record.optimizers)
    return loop.kind == UPDATE and not updating and bool(found.function[1]) and len(found.operators) >= _MANY_CALLS


def _goes_s(found: ParameterLoop, loop: Loop) -> tuple[float, float, float]:
    """Seconds of an undisturbed step that go: at worst, likely, at best."""
    best, likely, worst = _LEFT.get(loop.kind, _LEFT_OF_AVERAGE)
    taken, work = found.seconds + found.backward_s, found.work_s
    if loop.kind == AVERAGE:
        best, likely, worst = (min(0.95, each / len(found.operators)) for each in _LEFT_OF_AVERAGE)
    elif loop.kind == PENALTY and loop.squares:
        best, likely, worst = _LEFT_OF_SQUARES
    elif loop.kind == VALUES:
        work = 0.0  # what is not computed is not worked on
    calling = max(0.0, taken - work)
    if loop.kind != VALUES and not loop.squares:  # of which all goes, work and calls
        calling = min(calling, _MOST_OF_A_CALL_S * found.rounds * len(found.operators))
    return calling * (1.0 - worst), calling * (1.0 - likely), calling * (1.0 - best)


def _finding(evidence: Evidence, loops: list[tuple[ParameterLoop, Loop]]) -> Iterator[Finding]:
    """What one change does about these loops, all of one kind, if it is worth it."""
    if not loops:
        return
    goes = [sum(each) for each in zip(*(_goes_s(*each) for each in loops), strict=True)]
    worst, likely, best = (evidence.what_if(Change(remove_host_s=each)).speedup for each in goes)
    gain = Gain(max(min(worst[0], likely[1]), best[1] / WIDEST), likely[1], best[1], _BASIS)
    if gain.likely < (_LEAST_OF_AVERAGE if loops[0][1].kind == AVERAGE else _LEAST):
        return
    longest, loop = max(loops, key=lambda each: each[0].seconds + each[0].backward_s)
    sites = sorted(
        (Site(found.function[0], each.line) for found, each in loops), key=lambda site: (site.file, site.line)
    )
    taken = sum(found.seconds + found.backward_s for found, _ in loops)
    calls = sum(found.rounds * len(found.operators) for found, _ in loops)
    more = f" and at {', '.join(map(at, sites[1:]))}" if len(sites) > 1 else ""
    optimizers = evidence.record.optimizers if evidence.record is not None else []
    yield Finding(
        rule=LoopOverParameters.id,
        title=LoopOverParameters.title,
        summary=f"The loop at {at(sites[0])}{more} {_SAID[loop.kind]} one parameter after the other: it calls "
        f"{calls:.0f} operators in every step, {taken / evidence.step_s if evidence.step_s else 0:.0%} of it"
        + (", with their backward." if longest.backward_s else "."),
        gain=gain,
        evidence={
            "loop_s": taken,
            "work_s": sum(found.work_s for found, _ in loops),
            "rounds_per_step": sum(found.rounds for found, _ in loops),
            "operators_per_round": len(longest.operators),
            "step_s": evidence.step_s,
        },
        site=Site(longest.function[0], loop.line),
        parameters={
            "kind": "squares" if loop.squares else loop.kind,
            "alike": longest.alike,
            # As many as one of the two models is known to have: the loop then ends with neither before the other.
            "whole": any(each.parameters == round(longest.rounds) for each in optimizers),
        },
    )
