"""Gradients travel in the backward that an optimizer's step follows, and stay where they are in those before it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name, full_name
from advisor.edit.regions import between, bound_names, holder, suspends
from advisor.harness.layout import Site

_CALLED = "the forward, its backward and the optimizer's step are not told apart in the text"
_WRAPS = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
# What a condition may be made of that is to be asked earlier: it changes nothing, and is the same a few lines before.
_PLAIN = (cst.Name, cst.Attribute, cst.Integer, cst.SimpleString, cst.Comparison, cst.ComparisonTarget, cst.Arg)
_PURE = ("len", "int", "min", "max")
# What reads or changes gradients that are one rank's own until the last backward.
_LOOKS = re.compile(r"\.grad\b|clip_grad|grad_norm|unscale_|zero_grad|register_\w*hook")


def exchange_once(drafts: Drafts, forwards: Sequence[Site], backwards: Sequence[Site], steps: Sequence[Site]) -> str:
    """Have the forward and backward run under ``no_sync`` unless the step follows; why not, when that is not safe."""
    calls = [*forwards, *backwards, *steps]
    if not len(forwards) == len(backwards) == len(steps) == 1 or len({site.file for site in calls}) > 1:
        return _CALLED
    draft = drafts[forwards[0].file]
    forward, backward, step = (call_at(draft, site) for site in calls)
    if forward is None or backward is None or step is None or not isinstance(forward.func, (cst.Name, cst.Attribute)):
        return _CALLED
    if not _always_wrapped(draft):
        return "whether the model is wrapped in DistributedDataParallel in each run is not certain"
    found = _region(draft, forward, backward, step)
    if isinstance(found, str):
        return found
    first, last, condition = found
    if any(map(suspends, between(draft, first, last))):
        return "a statement between forward and backward yields"
    null = ensure_name(draft, "contextlib.nullcontext")
    draft.wrap(first, last, f"with {null}() if {condition} else {draft.code(forward.func)}.no_sync()")
    return ""


def _region(
    draft: Draft, forward: cst.Call, backward: cst.Call, step: cst.Call
) -> tuple[Statement, Statement, str] | str:
    """The first and the last statement to run under it, and the condition under which the step follows."""
    statement = draft.statement(backward)
    if statement is None or draft.loop(statement) is None:
        return _CALLED
    siblings = draft.siblings(statement)
    places = [holder(draft, siblings, each) for each in (forward, backward, step)]
    if None in places:
        return _CALLED
    first, last, stepping = (each for each in places if each is not None)
    asks = siblings[stepping]
    if not first <= last < stepping or not isinstance(asks, cst.If) or asks.orelse is not None:
        return "the optimizer's step is under no condition of its own that could be asked before the forward"
    if holder(draft, draft.siblings(asks.body.body[0]), step) is None:
        return _CALLED
    others = [each for each in siblings if each is not asks]
    if any(_LOOKS.search(draft.code(each)) for each in others):
        return "the gradients of each backward are looked at, or dropped"
    changed = set().union(*(bound_names(draft, each) for each in siblings[first:stepping]))
    used = {name.value for name in draft.nodes(cst.Name, asks.test)}
    members = {each.attr.value for each in draft.nodes(cst.Attribute, asks.test)}
    if used & changed or members & _set_later(draft) or not all(map(_plain, [asks.test, *_parts(draft, asks.test)])):
        return "what the optimizer's step waits for may change between the forward and it"
    return siblings[first], siblings[last], draft.code(asks.test)


def _set_later(draft: Draft) -> set[str]:
    """The attributes that the file gives other values than ``__init__`` does: what is called meanwhile may do so."""
    targets = [
        *(each.target for each in draft.nodes(cst.AssignTarget)),
        *(each.target for each in draft.nodes(cst.AugAssign)),
        *(each.target for each in draft.nodes(cst.AnnAssign)),
    ]
    members = [each for each in targets if isinstance(each, cst.Attribute)]
    around = {each: draft.function(each) for each in members}
    return {each.attr.value for each, of in around.items() if of is None or of.name.value != "__init__"}


def _parts(draft: Draft, test: cst.BaseExpression) -> list[cst.BaseExpression]:
    return draft.nodes(cst.BaseExpression, test)  # type: ignore[type-abstract]


def _plain(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name) and node.func.value in _PURE
    return isinstance(node, (*_PLAIN, cst.BinaryOperation, cst.BooleanOperation, cst.UnaryOperation))


def _always_wrapped(draft: Draft) -> bool:
    """Whether the file wraps a model, and not under a condition."""
    wraps = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func) in _WRAPS]
    return bool(wraps) and not any(
        isinstance(above, (cst.If, cst.IfExp))
        and not m.matches(above, m.If(test=m.Comparison(left=m.Name("__name__"))))
        for each in wraps
        for above in draft.ancestors(each)
    )
