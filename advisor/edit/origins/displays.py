"""Dicts that are written out in the script's modules, and which of them a mapping may be."""

from __future__ import annotations

from typing import TypeGuard

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.changes import is_changed
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError
from advisor.edit.names import full_name
from advisor.edit.origins.held import held_by
from advisor.edit.scopes import (
    dict_display,
    dict_entry,
    string_value,
)

Display = tuple[Draft, cst.Dict | cst.Call]
_DEPTH = 6  # names followed from one to the next


def displays_of(drafts: Drafts, draft: Draft, mapping: cst.BaseExpression, depth: int = _DEPTH) -> list[Display]:
    """The ``{…}`` and ``dict(…)`` that an expression may be, and the files that they stand in; empty where unknown.

    Several where a key that is no literal chooses one of a dict's, or where calls of a function pass different ones.
    What is changed after it was written is unknown.
    """
    try:
        return _displays(drafts, draft, mapping, depth)
    except TooManyFilesError:
        return []


def _displays(drafts: Drafts, draft: Draft, mapping: cst.BaseExpression, depth: int) -> list[Display]:
    if depth == 0:
        return []
    if isinstance(mapping, cst.Dict):
        return [(draft, mapping)]
    if isinstance(mapping, cst.Call) and _is_copy(draft, mapping):
        return displays_of(drafts, draft, _copied(mapping), depth - 1)
    if isinstance(mapping, cst.Subscript) and len(mapping.slice) == 1:
        return _items(displays_of(drafts, draft, mapping.value, depth - 1), mapping.slice[0].slice)
    if isinstance(mapping, cst.Name):
        return _named(drafts, draft, mapping, depth) if not is_changed(drafts, draft, mapping.value) else []
    if isinstance(mapping, cst.Attribute) and is_changed(drafts, draft, mapping.attr.value):
        return []
    display = dict_display(draft, mapping)
    if isinstance(display, cst.Call) and _is_copy(draft, display):
        return displays_of(drafts, draft, _copied(display), depth - 1)
    return [(draft, display)] if display is not None else []


def _named(drafts: Drafts, draft: Draft, name: cst.Name, depth: int) -> list[Display]:
    values = held_by(drafts, draft, name) or []
    found = [displays_of(drafts, of, each, depth - 1) if each is not None else [] for of, each in values]
    return [each for one in found for each in one] if all(found) else []


def _items(outer: list[Display], index: cst.BaseSlice) -> list[Display]:
    """The dicts in a dict: of its key, or all of them where that is no literal."""
    key = string_value(index.value) if isinstance(index, cst.Index) else ""
    if len(outer) != 1:
        return []
    draft, display = outer[0]
    if key:
        entry = dict_entry(display, key)
        return [(draft, entry)] if entry is not None and _is_display(entry) else []
    elements = display.elements if isinstance(display, cst.Dict) else []
    found = [(draft, each.value) for each in elements if isinstance(each, cst.DictElement) and _is_display(each.value)]
    return [*found] if len(found) == len(elements) else []


def _is_display(node: cst.BaseExpression) -> TypeGuard[cst.Dict | cst.Call]:
    """``{…}``, or ``dict(…)`` of names alone."""
    if isinstance(node, cst.Call):
        return get_full_name_for_node(node.func) == "dict" and all(arg.keyword is not None for arg in node.args)
    return isinstance(node, cst.Dict)


def _is_copy(draft: Draft, call: cst.Call) -> bool:
    """``dict(x)``, ``x.copy()``, ``copy.deepcopy(x)``: nothing is put in or left out."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "copy" and not call.args:
        return True
    if full_name(draft, call.func) not in ("dict", "copy.deepcopy", "copy.copy") or len(call.args) != 1:
        return False
    return call.args[0].keyword is None and not call.args[0].star


def _copied(call: cst.Call) -> cst.BaseExpression:
    if call.args:
        return call.args[0].value
    return cst.ensure_type(call.func, cst.Attribute).value
