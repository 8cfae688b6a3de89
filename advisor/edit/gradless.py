"""Regions that run without gradients: under which mode they may, by what the source does with their results."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft
from advisor.edit.names import ensure_name

_DIFFERENTIATES = ("backward", "grad", "requires_grad", "requires_grad_", "step", "zero_grad", "train")
_TRAINS = ("backward", "requires_grad_", "zero_grad")


def differentiates(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether a function asks for gradients itself."""
    called = {each.attr.value for each in draft.nodes(cst.Attribute, function)}
    return bool(called & {*_DIFFERENTIATES})


def trains_too(draft: Draft) -> bool:
    """Whether the file trains something: what was made in inference mode cannot be an input of that."""
    return bool({each.attr.value for each in draft.nodes(cst.Attribute)} & {*_TRAINS})


def results_of(draft: Draft, function: str) -> set[str]:
    """Names that results of a function are given."""
    names: set[str] = set()
    for assign in draft.nodes(cst.Assign):
        value = assign.value
        if isinstance(value, cst.Call) and (get_full_name_for_node(value.func) or "").rpartition(".")[2] == function:
            for target in assign.targets:
                names |= {each.value for each in draft.nodes(cst.Name, target)}
    return names


def mode_for(draft: Draft, region: cst.CSTNode, names: set[str]) -> str:
    """``torch.inference_mode``; ``torch.no_grad`` where one of these names is changed in place outside the region, or
    where the file trains something, too."""
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
    hit = any(isinstance(node, cst.Name) and node.value in names for node in outside)
    return ensure_name(draft, "torch.no_grad" if hit or trains_too(draft) else "torch.inference_mode")
