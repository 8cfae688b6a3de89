"""The names by which an expression comes to its value: ``cfg["train"].get("lr")`` is cfg, train, lr.

They are what a settings file calls the value, or end in it.
"""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import calls_of
from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError
from advisor.edit.origins.hparams import kept_parameter
from advisor.edit.scopes import assignments, is_parameter, parameter_names, scope_of, self_assignments, string_value

_DEPTH = 8  # names followed from one to the next
_CONVERSIONS = ("int", "float", "bool", "str", "dict")


def names_of(drafts: Drafts, draft: Draft, node: cst.BaseExpression) -> list[str]:
    """The names, followed through plain assignments and calls as far as they are certain; empty for other code.

    A single name says nothing of where its value comes from: empty, too.
    """
    found = _certain(drafts, draft, node, base=False)
    return found if len(found) > 1 else []


def mapping_names(drafts: Drafts, draft: Draft, node: cst.BaseExpression) -> list[str]:
    """The names of a mapping whose values are meant: ``cfg`` alone may be all of a file."""
    return _certain(drafts, draft, node, base=True) if drafts.sources.settings else []


def _certain(drafts: Drafts, draft: Draft, node: cst.BaseExpression, base: bool) -> list[str]:
    try:
        return _Names(drafts).of(draft, node, _DEPTH, base)
    except TooManyFilesError:
        return []


class _Names:
    """Follows names through the script's modules."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts

    def of(self, draft: Draft, node: cst.BaseExpression, depth: int, base: bool) -> list[str]:
        """`base`: what a key is asked of; it may be anything that is not written out in the source itself."""
        if isinstance(node, cst.Name):
            followed, unknown = self._followed(draft, node, depth - 1, base) if depth else ([], True)
            return followed or ([node.value] if base and unknown else [])
        if isinstance(node, cst.Attribute):
            own = _own_value(draft, node) if depth else None
            if own is not None:
                followed = self.of(draft, own, depth - 1, base)
                if followed or not base or not _unknown(own):
                    return followed
            kept = kept_parameter(draft, node) if depth else None
            if kept is not None:
                return self._passed(draft, kept[0], node.attr.value, depth - 1, base)[0]
            before = self.of(draft, node.value, depth, base=True)
            return [*before, node.attr.value] if before else []
        if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            return self._with_key(draft, node.value, node.slice[0].slice.value, depth)
        if isinstance(node, cst.Call) and node.args and not node.args[0].star:
            name = get_full_name_for_node(node.func) or ""
            if name in _CONVERSIONS and len(node.args) == 1:
                return self.of(draft, node.args[0].value, depth, base)
            if name == "getattr" and len(node.args) > 1:
                return self._with_key(draft, node.args[0].value, node.args[1].value, depth)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("get", "pop"):
                return self._with_key(draft, node.func.value, node.args[0].value, depth)
        if isinstance(node, cst.Call) and base:
            if len(node.args) == 1 and node.args[0].star == "**":  # Settings(**read(path)["train"])
                return self.of(draft, node.args[0].value, depth, base)
            return [get_full_name_for_node(node.func) or "()"]
        return []

    def _with_key(self, draft: Draft, base: cst.BaseExpression, key: cst.BaseExpression, depth: int) -> list[str]:
        name, before = string_value(key), self.of(draft, base, depth, base=True)
        return [*before, name] if name and before else []

    def _followed(self, draft: Draft, name: cst.Name, depth: int, base: bool) -> tuple[list[str], bool]:
        """The names of what a name is given, by its only assignment or by the calls of the function that it belongs to.

        And whether that may have been read from a file.
        """
        scope = scope_of(draft, name)
        while True:
            bound = list(assignments(draft, name.value, scope))
            if bound:
                value = bound[0] if len(bound) == 1 else None
                return (self.of(draft, value, depth, base) if value is not None else []), _unknown(value)
            if isinstance(scope, cst.FunctionDef) and name.value in parameter_names(draft, scope):
                return self._passed(draft, scope, name.value, depth, base)
            if scope is draft.module or is_parameter(scope, name.value):
                return [], True
            scope = scope_of(draft, scope)

    def _passed(
        self, draft: Draft, function: cst.FunctionDef, name: str, depth: int, base: bool
    ) -> tuple[list[str], bool]:
        """As :meth:`_followed`, of a parameter; an entry of ``**mapping`` has the mapping's names in front."""
        found, unknown = list[list[str]](), True
        for user, call in calls_of(self._drafts, draft, function) or ():
            passed, mappings = argument(call, name, parameter_names(draft, function)), unpacked(call)
            if passed is not None and not passed.star:
                found.append(self.of(user, passed.value, depth, base))
                unknown = unknown and _unknown(passed.value)
            elif len(mappings) == 1 and not has_starred(call):
                before = self.of(user, mappings[0].value, depth, base=True)
                found.append([*before, name] if before else [])
            else:
                found.append([])
        alike = bool(found) and all(each == found[0] for each in found)
        return (found[0] if alike else []), unknown or len(found) != 1


def _unknown(value: cst.BaseExpression | None) -> bool:
    """Whether a value may have been read from a file: a call's result, or what the text does not tell."""
    return value is None or isinstance(value, cst.Call)


def _own_value(draft: Draft, node: cst.Attribute) -> cst.BaseExpression | None:
    """What ``self.name`` is given by the only assignment to it in its class."""
    holder = draft.enclosing_class(node)
    if holder is None or get_full_name_for_node(node.value) != "self":
        return None
    values = self_assignments(draft, holder, node.attr.value)
    return values[0] if len(values) == 1 else None
