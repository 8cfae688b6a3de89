"""``nn.MultiheadAttention`` that is asked for its weights, as it is by default, where nobody takes them.

Asked for them it writes out the scores and averages them over the heads; without, it calls
``scaled_dot_product_attention``.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.algebra.results import keeps
from advisor.edit.calls import argument, has_starred, set_argument, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import full_name

_PARAMETERS = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")  # of its forward, in order
_PLACES = ("torch.nn", "torch.nn.modules", "torch.nn.modules.activation", "torch.nn.modules.transformer")
_NAMES = tuple(f"{place}.MultiheadAttention" for place in _PLACES)


def unread_weights(draft: Draft) -> Iterator[cst.Call]:
    """The calls of a file's ``nn.MultiheadAttention`` modules that make weights, and drop them right there."""
    for holder in draft.nodes(cst.ClassDef):
        modules = {target for target in _targets(draft, holder) if _always_made(draft, holder, target)}
        for call in draft.nodes(cst.Call, holder):
            called = get_full_name_for_node(call.func) or ""
            if called not in modules or draft.enclosing_class(call) is not holder or not _asked(draft, call):
                continue
            if keeps(draft, call, 1, 2) == "":
                yield call


def leave_weights(draft: Draft, call: cst.Call) -> None:
    """Have the call make no weights; it returns None for them."""
    set_argument(draft, call, "need_weights", "False", _PARAMETERS)


def _targets(draft: Draft, holder: cst.ClassDef) -> Iterator[str]:
    """The attributes of a class, as "self.attn"."""
    for target, _ in _assigned(draft, holder):
        if target.startswith("self.") and target.count(".") == 1:
            yield target


def _always_made(draft: Draft, holder: cst.ClassDef, target: str) -> bool:
    """Whether that attribute is such a module wherever it gets a value: in its class, its heirs, or from outside."""
    inside = {id(value) for each in (holder, *_heirs(draft, holder)) for _, value in _assigned(draft, each)}
    for name, value in _assigned(draft):
        if name.rpartition(".")[2] != target.rpartition(".")[2] or (name == target and id(value) not in inside):
            continue  # another attribute; the same of another class
        if not isinstance(value, cst.Call) or full_name(draft, value.func) not in _NAMES:
            return False
    return True


def _assigned(draft: Draft, inside: cst.ClassDef | None = None) -> Iterator[tuple[str, cst.BaseExpression]]:
    """(attribute, value) of each assignment to one: ``self.attn = …``, ``model.attn: nn.Module = …``."""
    for assign in draft.nodes(cst.Assign, inside):
        for each in assign.targets:
            if isinstance(each.target, cst.Attribute):
                yield get_full_name_for_node(each.target) or "", assign.value
    for annotated in draft.nodes(cst.AnnAssign, inside):
        if isinstance(annotated.target, cst.Attribute) and annotated.value is not None:
            yield get_full_name_for_node(annotated.target) or "", annotated.value


def _heirs(draft: Draft, holder: cst.ClassDef) -> list[cst.ClassDef]:
    """The classes of the file that inherit this one, over others or not."""
    names, found = {holder.name.value}, list[cst.ClassDef]()
    for each in draft.nodes(cst.ClassDef):  # in the order of the text, in which a base comes first
        if any(get_full_name_for_node(base.value) in names for base in each.bases):
            names.add(each.name.value)
            found.append(each)
    return found


def _asked(draft: Draft, call: cst.Call) -> bool:
    if has_starred(call) or unpacked(call):
        return False
    given = argument(call, "need_weights", _PARAMETERS)
    return given is None or draft.code(given.value) == "True"
