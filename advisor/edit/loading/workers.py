"""What a loader's workers ask of the source: a number above 0, what can be pickled, a script to be imported again."""

from __future__ import annotations

import os

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import DATALOADER_PARAMETERS, argument, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.loading.guard import add_main_guard
from advisor.edit.names import full_name
from advisor.edit.origins.values import display_of, put_in_later
from advisor.edit.scopes import dict_entry, is_literal, parse_number

# What takes a function that a worker calls: arguments by keyword, and calls.
_CALLED_BACK = ("collate_fn", "data_collator", "worker_init_fn", "transform", "target_transform", "transforms")
_COUNTS = ("os.cpu_count", "multiprocessing.cpu_count")  # of which there is always one
_WRAPPERS = ("Lambda", "set_transform", "with_transform")


def only_with_workers(
    draft: Draft, call: cst.Call, code: str, without: str, name: str = "num_workers", given: bool = False
) -> str | None:
    """`code` for an argument of a DataLoader that must have workers for it, or `without` where it may have none.

    None where the call does not say how many it has, or where a mapping could get what only the call can read: torch
    raises ValueError for ``prefetch_factor`` and ``persistent_workers`` without any. `given`: the call, or the literal
    in it, or in a mapping that it unpacks, has just been given a number above 0.
    """
    passed = argument(call, name, DATALOADER_PARAMETERS)
    if passed is None:
        written = all(_written_out(draft, each.value, name) for each in unpacked(call))
        return code if written and (given or any(_some(draft, each.value, name) for each in unpacked(call))) else None
    if passed.star:
        return None
    if isinstance(passed.value, cst.Integer):
        return code if given or passed.value.evaluated_value > 0 else None
    if unpacked(call):
        return None
    if isinstance(passed.value, cst.Call) and full_name(draft, passed.value.func) in _COUNTS:
        return code
    if isinstance(passed.value, cst.IfExp) and _is_read_only(passed.value.test):
        either = parse_number(passed.value.body) and parse_number(passed.value.orelse) == 0.0
        return f"{code} if {draft.code(passed.value.test)} else {without}" if either else None
    if not _is_read_only(passed.value):
        return None
    some = f"{draft.code(passed.value)} > 0"
    return some if (code, without) == ("True", "False") else f"{code} if {some} else {without}"


def _some(draft: Draft, mapping: cst.BaseExpression, name: str) -> bool:
    """Whether a mapping that is written out gives the key a number above 0."""
    display = display_of(draft, mapping)
    entry = dict_entry(display, name) if display is not None else None
    return entry is not None and (parse_number(entry) or 0.0) > 0


def _written_out(draft: Draft, mapping: cst.BaseExpression, name: str) -> bool:
    """Whether a mapping is written out, with a literal for the key, or without the key, and gets no other later."""
    display = display_of(draft, mapping)
    entry = dict_entry(display, name) if display is not None else None
    given = display is not None and (entry is None or is_literal(entry))
    return given and put_in_later(draft, mapping, name) == []


def _is_read_only(node: cst.BaseExpression) -> bool:
    """A name, attribute or entry, which may be read once more: ``n``, ``args.n``, ``cfg["loader"]["n"]``."""
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice if len(node.slice) == 1 else None
        return isinstance(index, cst.Index) and is_literal(index.value) and _is_read_only(node.value)
    return isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and _is_read_only(node.value))


def unpicklable(draft: Draft) -> str:
    """A function that workers call and that cannot be sent to them, in words; empty where none is seen in the file."""
    local = {each.name.value for each in draft.nodes(cst.FunctionDef) if draft.function(each) is not None}
    local |= {
        target.target.value
        for each in draft.nodes(cst.Assign)
        for target in each.targets
        if isinstance(each.value, cst.Lambda) and isinstance(target.target, cst.Name)
    }
    for call in draft.nodes(cst.Call):
        wraps = (get_full_name_for_node(call.func) or "").rpartition(".")[2] in _WRAPPERS
        for arg in call.args:
            if not (wraps or (arg.keyword is not None and arg.keyword.value in _CALLED_BACK)):
                continue
            if isinstance(arg.value, cst.Lambda):
                return "a lambda"
            if isinstance(arg.value, cst.Name) and arg.value.value in local:
                return f"the local function {arg.value.value}"
    return ""


def may_be_imported_again(drafts: Drafts, draft: Draft, call: cst.Call, script: str) -> bool:
    """Whether workers may import the script again: it is guarded, or gets a guard. The call may be in another file."""
    if not script or not drafts.sources.has(script) or os.path.abspath(script) == os.path.abspath(draft.source.path):
        return add_main_guard(draft, call)
    return drafts.sources.editable(script) and add_main_guard(drafts[script])
