"""Dicts that are written out in the script's modules, and which of them a mapping may be."""

from __future__ import annotations

from typing import TypeGuard

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import given, renames
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_word
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    dict_display,
    dict_entry,
    is_parameter,
    parameter,
    scope_of,
    string_value,
)

Display = tuple[Draft, cst.Dict | cst.Call]
_DEPTH = 6  # names followed from one to the next
# Calls that show or copy what they are given.
_READS = ("dict", "copy", "deepcopy", "print", "len", "str", "repr", "list", "sorted", "dumps", "dump", "isinstance")
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "__setitem__")


def displays_of(drafts: Drafts, draft: Draft, mapping: cst.BaseExpression, depth: int = _DEPTH) -> list[Display]:
    """The ``{…}`` and ``dict(…)`` that an expression may be, and the files that they stand in; empty where unknown.

    Several where a key that is no literal chooses one of a dict's, or where calls of a function pass different ones.
    What is changed after it was written is unknown.
    """
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


def is_changed(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether anything of that name, in any of the modules, is or may be changed: all that is sure is reading an item.

    That is ``name["key"]``, ``**name``, a copy, and what shows it.
    """
    for each in with_word(drafts, draft, name):
        if renames(each, name):
            return True
        for node in each.nodes(cst.Name):
            if node.value == name and not _only_read(each, node):
                return True
    return False


def _only_read(draft: Draft, node: cst.Name) -> bool:
    whole: cst.CSTNode = node
    above = draft.parent(node)
    if isinstance(above, cst.Attribute) and above.attr is node:
        whole, above = above, draft.parent(above)
    if isinstance(above, (cst.Param, cst.ImportAlias)) or (isinstance(above, cst.Arg) and above.keyword is node):
        return True
    inner = whole
    while isinstance(above, cst.Subscript) and above.value is inner:  # NAME["train"]["size"]
        inner, above = above, draft.parent(above)
    if isinstance(above, (cst.AssignTarget, cst.AnnAssign)) and above.target is inner:
        return inner is whole  # which gives the name its value
    if isinstance(above, cst.Attribute):
        return above.value is not inner or above.attr.value not in _CHANGES
    if isinstance(above, cst.Arg):
        call = draft.parent(above)
        if above.star == "**":
            return True
        # Of an item that is handed on nothing is changed here, of the whole it may be.
        known = isinstance(call, cst.Call) and last_part(call.func) in _READS
        return known or _is_followed(draft, call) or inner is not whole
    if isinstance(above, (cst.AugAssign, cst.Del, cst.For)):
        return isinstance(above, cst.For) and above.iter is inner
    if isinstance(above, (cst.Assign, cst.Element)):
        return inner is not whole or (isinstance(above, cst.Assign) and isinstance(inner, cst.Subscript))
    return True


def _is_followed(draft: Draft, call: cst.CSTNode | None) -> bool:
    """Whether what is handed on is a function's of the script's, whose parameter is looked at by its own name."""
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
        return False
    name = call.func.value
    return bool(imported_as(draft, name)) or any(each.name.value == name for each in _definitions(draft))


def _definitions(draft: Draft) -> list[cst.FunctionDef | cst.ClassDef]:
    return [*draft.nodes(cst.FunctionDef), *draft.nodes(cst.ClassDef)]


def _named(drafts: Drafts, draft: Draft, name: cst.Name, depth: int) -> list[Display]:
    scope = scope_of(draft, name)
    while scope is not draft.module:
        if isinstance(scope, cst.FunctionDef) and parameter(scope, name.value) is not None:
            if any(True for _ in assignments(draft, name.value, scope)):
                return []
            passed = given(drafts, draft, scope, name.value) or []
            found = [displays_of(drafts, of, each, depth - 1) for of, each in passed if each is not None]
            return [each for one in found for each in one] if all(found) and len(found) == len(passed) else []
        value = assigned_once(draft, name.value, scope)
        if value is not None or is_parameter(scope, name.value):
            return displays_of(drafts, draft, value, depth - 1) if value is not None else []
        scope = scope_of(draft, scope)
    value = assigned_once(draft, name.value, draft.module)
    if value is not None:
        return displays_of(drafts, draft, value, depth - 1)
    module, _, attribute = imported_as(draft, name.value).rpartition(".")
    other = beside(drafts, draft, module)
    value = assigned_once(other, attribute, other.module) if other is not None else None
    return displays_of(drafts, other, value, depth - 1) if other is not None and value is not None else []


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
