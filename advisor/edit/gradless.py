"""Regions without gradients: whether they may run in inference mode, by what the source does with their results."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft
from advisor.edit.models import model_name
from advisor.edit.names import last_part
from advisor.edit.origin import assignments

_DIFFERENTIATES = ("backward", "grad", "requires_grad", "requires_grad_", "step", "zero_grad", "train")
_TRAINS = ("backward", "zero_grad")


def differentiates(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether a function asks for gradients itself."""
    called = {each.attr.value for each in draft.nodes(cst.Attribute, function)}
    return bool(called & {*_DIFFERENTIATES})


def makes_model(draft: Draft, call: cst.Call, function: cst.FunctionDef) -> bool:
    """Whether the function also makes the model that it calls: its parameters must be ordinary tensors."""
    first = model_name(draft, call).partition(".")[0]
    own = function.name.value in ("__init__", "main")
    return own or not first or any(True for _ in assignments(draft, first, function.body))


def results_of(draft: Draft, function: str) -> set[str]:
    """Names that results of a function are given, or a part of them, or what a method makes of them."""
    names: set[str] = set()
    for assign in draft.nodes(cst.Assign):
        calls = {(get_full_name_for_node(each.func) or "").rpartition(".")[2] for each in draft.nodes(cst.Call, assign)}
        if function in calls:
            names |= {each.value for target in assign.targets for each in draft.nodes(cst.Name, target)}
    for loop in draft.nodes(cst.For):
        if any(each.value == function for each in draft.nodes(cst.Name, loop.iter)):
            names |= {each.value for each in draft.nodes(cst.Name, loop.target)}
    return names


def refuses_inference_mode(draft: Draft, region: cst.CSTNode, names: set[str]) -> bool:
    """Whether what `region` makes must not be made in inference mode: one of its results, under these `names`, is
    changed in place outside of it, or the file trains something, too."""
    # ``self.h = net(x)`` in the region: the attribute may be changed from anywhere.
    targets = [each.target for each in draft.nodes(cst.AssignTarget, region)]
    names = names | {each.attr.value for each in targets if isinstance(each, cst.Attribute)}
    changed: list[cst.CSTNode] = []
    for update in draft.nodes(cst.AugAssign):
        changed.append(update.target)
    for target in draft.nodes(cst.AssignTarget):
        if isinstance(target.target, cst.Subscript):
            changed.append(target.target.value)
    for method in draft.nodes(cst.Attribute):
        if method.attr.value.endswith("_") and not method.attr.value.endswith("__"):
            changed.append(method.value)
    outside = [node for node in changed if not any(above is region for above in draft.ancestors(node))]
    return _trains(draft) or any(last_part(node) in names for node in outside)


def _trains(draft: Draft) -> bool:
    """Whether the file trains something: what was made in inference mode cannot be an input of that."""
    return bool({each.attr.value for each in draft.nodes(cst.Attribute)} & {*_TRAINS})
