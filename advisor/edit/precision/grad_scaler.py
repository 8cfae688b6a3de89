"""A ``GradScaler`` around the backward and the step of one optimizer, which gradients in float16 need.

Between backward and step the gradients are scaled. What reads or changes them there has to come after one
``scaler.unscale_(optimizer)``; what does so out of sight of the step, or steps and differentiates elsewhere, rules the
edit out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument, wrap_call
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at, last_name, outermost_at
from advisor.edit.names import ensure_name, fresh_name, full_name
from advisor.edit.regions import holder
from advisor.edit.scopes import scope_of
from advisor.harness.layout import Site

_FUNCTION = "torch.autograd.backward"
_CLIPS = re.compile(r"clip\w*(grad|norm)|grad\w*_clip|unitwise_clip")


def backward_calls(draft: Draft, found: Sequence[Site]) -> list[cst.Call] | None:
    """The calls of ``backward`` at the sites of this file; None where one cannot be told from others."""
    calls = [call_at(draft, site, ("backward",)) for site in found if site.file == draft.source.path]
    return None if None in calls else [call for call in calls if call is not None]


def scale_loss(
    drafts: Drafts, backwards: Sequence[Site], steps: Sequence[Site], optimizers: Sequence[Site], device: str
) -> str:
    """Have a GradScaler made beside the optimizer and used around backward and step; why not, when not safe."""
    if len(steps) != 1 or len(optimizers) != 1:
        return "float16 needs one GradScaler per optimizer, and there is not exactly one optimizer"
    if len({site.file for site in (*backwards, *steps, *optimizers)}) != 1:
        return "backward, step and optimizer are in different files"
    draft = drafts[steps[0].file]
    step, made = call_at(draft, steps[0], ("step",)), outermost_at(draft, optimizers[0])
    losses = backward_calls(draft, backwards)
    if step is None or made is None or not losses:
        return "the calls cannot be told from others on their lines"
    step_line, made_line = draft.statement(step), draft.statement(made)
    name = get_full_name_for_node(step.func.value) if isinstance(step.func, cst.Attribute) else None
    if step_line is None or made_line is None or step.args or not name:
        return "the optimizer's step takes a closure, or is part of a larger expression"
    own = name.startswith("self.")
    inside = [scope_of(draft, each) for each in (step, *losses)]
    if not own and any(scope is not scope_of(draft, made) for scope in inside):
        return "the optimizer is made in another function than the one that steps it"
    made_line = _common(draft, made_line, scope_of(draft, made), None if own else step)
    if made_line is None:
        return "the optimizer is made on one of several ways to its step"
    if why := _others(draft, name, step, losses):
        return why
    if any(_differentiated(draft, each) is None for each in losses):
        return "what is differentiated cannot be told from the source"
    reads = _reads(draft, step_line, losses)
    if isinstance(reads, str):
        return reads
    scaler = ("self." if own else "") + fresh_name(draft, "scaler")
    draft.insert_after(made_line, f'{scaler} = {ensure_name(draft, "torch.amp.GradScaler")}("{device}")')
    for differentiated in filter(None, (_differentiated(draft, each) for each in losses)):
        wrap_call(draft, differentiated, f"{scaler}.scale")
    if reads:
        draft.insert_before(reads[0], f"{scaler}.unscale_({name})")
    draft.change(step, lambda _: cst.parse_expression(f"{scaler}.step({name})"))
    draft.insert_after(step_line, f"{scaler}.update()")
    return ""


def _differentiated(draft: Draft, backward: cst.Call) -> cst.BaseExpression | None:
    """The loss of ``loss.backward()`` and of ``torch.autograd.backward(loss)``, which may be a list of them."""
    if full_name(draft, backward.func) == _FUNCTION:
        given = argument(backward, "tensors", ("tensors",))
        return given.value if given is not None else None
    return backward.func.value if isinstance(backward.func, cst.Attribute) else None


def _common(draft: Draft, made: Statement, scope: cst.CSTNode, step: cst.Call | None) -> Statement | None:
    """The statement to make the scaler behind: of the branches that make the optimizer the whole ``if``.

    Its block is one that the step is in, too; where the step is in another method, the function's own.
    """
    while True:
        block = draft.block(made)
        around = draft.ancestors(step) if step is not None else (scope, getattr(scope, "body", None))
        if block is not None and any(each is block for each in around):
            return made
        outer = next((each for each in draft.ancestors(made) if isinstance(each, cst.BaseCompoundStatement)), None)
        while isinstance(outer, cst.If) and isinstance(above := draft.parent(outer), cst.If):
            outer = above  # elif
        whole = draft.statement(outer) if isinstance(outer, (cst.If, cst.With, cst.Match)) else None
        if whole is None or m.findall(whole, m.Return()):
            return None
        made = whole


def _others(draft: Draft, name: str, step: cst.Call, losses: Sequence[cst.Call]) -> str:
    """Why a step or a backward that was not recorded rules the edit out: it would go on without the scaler."""
    for call in draft.nodes(cst.Call):
        if not isinstance(call.func, cst.Attribute) or call is step or call in losses:
            continue
        if call.func.attr.value == "step" and get_full_name_for_node(call.func.value) == name:
            return f"{name} is stepped at line {draft.line(call)}, too, which the run did not reach"
        if call.func.attr.value == "backward" and full_name(draft, call.func) != _FUNCTION:
            return f"there is another backward at line {draft.line(call)}, whose loss may need the scaler, too"
    return ""


def _reads(draft: Draft, step: Statement, losses: Sequence[cst.Call]) -> list[Statement] | str:
    """The statements beside the step that clip or read gradients between backward and step, in order.

    Or why that is not all: gradients are read where they may be scaled.
    """
    siblings = draft.siblings(step)
    end = next(index for index, each in enumerate(siblings) if each is step)
    begin = max((index for each in losses if (index := holder(draft, siblings, each)) is not None), default=-1)
    found: set[int] = set()
    for node in _gradients(draft):
        index = holder(draft, siblings, node)
        if index is None:
            return f"the gradients are read or clipped at line {draft.line(node)}, apart from the step"
        if index == begin and any(_before(draft, loss, node) for loss in losses):
            return f"the gradients are read or clipped at line {draft.line(node)}, within the statement of the backward"
        if begin < index < end:
            found.add(index)
    return [siblings[index] for index in sorted(found)]


def _before(draft: Draft, first: cst.CSTNode, second: cst.CSTNode) -> bool:
    return draft.line(first) <= draft.line(second)


def _gradients(draft: Draft) -> list[cst.CSTNode]:
    """Where gradients are clipped or read; of a function of this file that does so, where it is called."""
    found: list[cst.CSTNode] = [call for call in draft.nodes(cst.Call) if _CLIPS.search(last_name(draft, call))]
    for attribute in draft.nodes(cst.Attribute):
        if attribute.attr.value == "grad" and full_name(draft, attribute) != "torch.autograd.grad":
            above, method = draft.parent(attribute), ""
            while isinstance(above, cst.Attribute):
                method = above.attr.value
                above = draft.parent(above)
            dropped = isinstance(above, (cst.AssignTarget, cst.Comparison)) and not method  # p.grad is None
            if not dropped and method not in ("zero_", "detach_"):
                found.append(attribute)
    for call in list(found):
        function = draft.function(call)
        called = callers(draft, function) if function is not None else []
        own = {*draft.nodes(cst.Call, function)} if function is not None else set()
        if function is not None and called and not own & {*called} and not _steps(draft, function):
            found.remove(call)
            found += [each for each in called if each not in found]
    return found


def _steps(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether a function takes optimization steps itself."""
    return any(last_name(draft, call) in ("step", "backward") for call in draft.nodes(cst.Call, function))
