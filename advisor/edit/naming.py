"""The names by which an expression comes to its value: ``cfg["train"].get("lr")`` is cfg, train, lr.

They are what a settings file calls the value, or end in it.
"""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.scopes import assignments, is_parameter, parameter_names, scope_of, string_value

_DEPTH = 8  # names followed from one to the next
_CONVERSIONS = ("int", "float", "bool", "str", "dict")


def names_of(drafts: Drafts, draft: Draft, node: cst.BaseExpression) -> list[str]:
    """The names, followed through plain assignments and calls as far as they are certain; empty for other code.

    A single name says nothing of where its value comes from: empty, too.
    """
    found = _names(draft, node, _DEPTH, base=False) if drafts.sources.settings else []
    return found if len(found) > 1 else []


def mapping_names(drafts: Drafts, draft: Draft, node: cst.BaseExpression) -> list[str]:
    """The names of a mapping whose values are meant: ``cfg`` alone may be all of a file."""
    return _names(draft, node, _DEPTH, base=True) if drafts.sources.settings else []


def _names(draft: Draft, node: cst.BaseExpression, depth: int, base: bool) -> list[str]:
    """`base`: what a key is asked of; it may be anything that is not written out in the source itself."""
    if isinstance(node, cst.Name):
        value = _value_of(draft, node) if depth else None
        followed = _names(draft, value, depth - 1, base) if value is not None else []
        return followed or ([node.value] if base and _unknown(value) else [])
    if isinstance(node, cst.Attribute):
        own = _own_value(draft, node) if depth else None
        if own is not None:
            followed = _names(draft, own, depth - 1, base)
            if followed or not base or not _unknown(own):
                return followed
        before = _names(draft, node.value, depth, base=True)
        return [*before, node.attr.value] if before else []
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _with_key(draft, node.value, node.slice[0].slice.value, depth)
    if isinstance(node, cst.Call) and node.args and not node.args[0].star:
        name = get_full_name_for_node(node.func) or ""
        if name in _CONVERSIONS and len(node.args) == 1:
            return _names(draft, node.args[0].value, depth, base)
        if name == "getattr" and len(node.args) > 1:
            return _with_key(draft, node.args[0].value, node.args[1].value, depth)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("get", "pop"):
            return _with_key(draft, node.func.value, node.args[0].value, depth)
    if isinstance(node, cst.Call) and base:
        if len(node.args) == 1 and node.args[0].star == "**":  # Settings(**read(path)["train"])
            return _names(draft, node.args[0].value, depth, base)
        return [get_full_name_for_node(node.func) or "()"]
    return []


def _unknown(value: cst.BaseExpression | None) -> bool:
    """Whether a value may have been read from a file: a call's result, or what the text does not tell."""
    return value is None or isinstance(value, cst.Call)


def _with_key(draft: Draft, base: cst.BaseExpression, key: cst.BaseExpression, depth: int) -> list[str]:
    name, before = string_value(key), _names(draft, base, depth, base=True)
    return [*before, name] if name and before else []


def _value_of(draft: Draft, name: cst.Name) -> cst.BaseExpression | None:
    """What a name is given by its only assignment, or by the only call of the function whose parameter it is."""
    scope = scope_of(draft, name)
    while True:
        bound = list(assignments(draft, name.value, scope))
        if bound:
            return bound[0] if len(bound) == 1 else None
        if isinstance(scope, cst.FunctionDef) and name.value in (names := parameter_names(draft, scope)):
            calls = callers(draft, scope)
            passed = argument(calls[0], name.value, names) if len(calls) == 1 else None
            return passed.value if passed is not None and not passed.star else None
        if scope is draft.module or is_parameter(scope, name.value):
            return None
        scope = scope_of(draft, scope)


def _own_value(draft: Draft, node: cst.Attribute) -> cst.BaseExpression | None:
    """What ``self.name`` is given by the only assignment to it in its class."""
    holder = draft.enclosing_class(node)
    if holder is None or get_full_name_for_node(node.value) != "self":
        return None
    targets = [
        each
        for each in draft.nodes(cst.AssignTarget, holder)
        if get_full_name_for_node(each.target) == f"self.{node.attr.value}"
    ]
    statement = draft.parent(targets[0]) if len(targets) == 1 else None
    return statement.value if isinstance(statement, cst.Assign) and len(statement.targets) == 1 else None
