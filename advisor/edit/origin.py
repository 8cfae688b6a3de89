"""Where the value of an expression comes from: the place to change it at, or the command-line option.

Only what the text decides is followed: a literal, a name assigned once, a parameter with one caller or a default, an
``argparse`` option, a class-level default, an entry of a dict display. Everything else is None: a rule then gives
advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_neighbours
from advisor.edit.names import imported_as
from advisor.edit.scopes import (
    _parameter,
    assignments,
    dict_display,
    dict_entry,
    is_literal,
    is_parameter,
    parameter_names,
    scope_of,
    string_value,
)

Kind = Literal["literal", "constant", "default", "option", "flag", "dict"]
_DEPTH = 8  # names followed from one to the next before giving up; guards against cycles


@dataclass(frozen=True)
class Origin:
    """The expression in `draft` that gives the value, or the long command-line ``option`` that does."""

    draft: Draft
    kind: Kind
    node: cst.BaseExpression
    option: str = ""


def origin_of(drafts: Drafts, draft: Draft, node: cst.BaseExpression) -> Origin | None:
    """Follow `node` to the one place that its value is written at; None when that is not certain."""
    return _follow(drafts, draft, node, "literal", _DEPTH)


def _follow(drafts: Drafts, draft: Draft, node: cst.BaseExpression, kind: Kind, depth: int) -> Origin | None:
    if depth == 0:
        return None
    if is_literal(node):
        return Origin(draft, kind, node)
    if isinstance(node, cst.Name):
        return _name(drafts, draft, node, depth - 1)
    if isinstance(node, cst.Attribute):
        return _attribute(drafts, draft, node, depth - 1)
    if isinstance(node, cst.Subscript):
        return _subscript(drafts, draft, node, depth - 1)
    return None


# Names -------------------------------------------------------------------------------------------------------------


def _name(drafts: Drafts, draft: Draft, node: cst.Name, depth: int) -> Origin | None:
    scope = scope_of(draft, node)
    while isinstance(scope, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        parameter = _parameter(scope, node.value) if isinstance(scope, cst.FunctionDef) else None
        if parameter is None and is_parameter(scope, node.value):
            return None  # of a lambda, or *args, **kwargs
        if isinstance(scope, cst.FunctionDef):
            bound = list(assignments(draft, node.value, scope))
            if parameter is not None:
                return None if bound else _from_callers(drafts, draft, scope, parameter, depth)
            if bound:
                return _single(drafts, draft, bound, depth)
        scope = scope_of(draft, scope)
    bound = list(assignments(draft, node.value, draft.module))
    if any(node.value in {item.name.value for item in each.names} for each in draft.nodes(cst.Global)):
        return None
    if bound:
        return _single(drafts, draft, bound, depth)
    return _imported(drafts, draft, node.value, depth)


def _single(drafts: Drafts, draft: Draft, bound: list[cst.BaseExpression | None], depth: int) -> Origin | None:
    if len(bound) != 1 or bound[0] is None:
        return None
    return _follow(drafts, draft, bound[0], "constant", depth)


def _imported(drafts: Drafts, draft: Draft, name: str, depth: int) -> Origin | None:
    """A constant of a module beside this file: ``from config import BATCH_SIZE``."""
    module, _, attribute = imported_as(draft, name).rpartition(".")
    other = beside(drafts, draft, module)
    if other is None or not attribute:
        return None
    bound = list(assignments(other, attribute, other.module))
    return _single(drafts, other, bound, depth)


# Parameters --------------------------------------------------------------------------------------------------------


def _from_callers(
    drafts: Drafts, draft: Draft, function: cst.FunctionDef, parameter: cst.Param, depth: int
) -> Origin | None:
    if any(_click(draft, each, "command") or _click(draft, each, "option") for each in _decorations(function)):
        return _click_option(draft, function, parameter.name.value)
    calls = callers(draft, function)
    names = parameter_names(draft, function)
    if any(arg.star for call in calls for arg in call.args):
        return None
    passed = [found for call in calls if (found := argument(call, parameter.name.value, names)) is not None]
    if len(passed) == 1 and len(calls) == 1:
        return _follow(drafts, draft, passed[0].value, "constant", depth)
    if not passed and calls and parameter.default is not None:
        return _follow(drafts, draft, parameter.default, "default", depth)
    return None


def _decorations(function: cst.FunctionDef) -> list[cst.Call]:
    return [each.decorator for each in function.decorators if isinstance(each.decorator, cst.Call)]


def _click(draft: Draft, decorator: cst.Call, what: str) -> bool:
    """Whether a decorator is click's: ``@click.option(…)``, ``@option(…)`` imported from it."""
    first, _, rest = (get_full_name_for_node(decorator.func) or "").partition(".")
    return (imported_as(draft, first) + ("." + rest if rest else "")) == f"click.{what}"


def _click_option(draft: Draft, function: cst.FunctionDef, name: str) -> Origin | None:
    """``@click.option("--batch-size", default=32)`` of a command's parameter; nobody else calls a command."""
    found: list[Origin | None] = []
    for call in _decorations(function):
        words = [string_value(arg.value) for arg in call.args if arg.keyword is None]
        own = [word for word in words if word and not word.startswith("-")]
        # Like click: a name that is no option is the parameter's; else the first long option is, else the first.
        long = [word for word in words if word.startswith("--")]
        first = (own or long or words or [""])[0]
        if not _click(draft, call, "option") or first.lstrip("-").replace("-", "_").lower() != name:
            continue
        flag = argument(call, "is_flag")
        takes_several = any(argument(call, each) is not None for each in ("nargs", "multiple", "callback"))
        option = (long or [word for word in words if word.startswith("-")] or [""])[0]
        if flag is not None and isinstance(flag.value, cst.Name) and flag.value.value == "True":
            found.append(Origin(draft, "flag", call, option))
        elif flag is not None or takes_several or "/" in option or not option:
            found.append(None)
        else:
            found.append(Origin(draft, "option", call, option))
    return found[0] if len(found) == 1 else None


# Attributes --------------------------------------------------------------------------------------------------------


def _attribute(drafts: Drafts, draft: Draft, node: cst.Attribute, depth: int) -> Origin | None:
    name = node.attr.value
    if _attribute_assigned(draft, name, skip_self=True):
        return None
    for each in with_neighbours(drafts, draft):
        option = _option(each, name)
        if option is not None:
            return option
    base = get_full_name_for_node(node.value) or ""
    if base == "self" or base.endswith(".self"):
        holder = draft.enclosing_class(node)
        if holder is not None:
            values = _self_assignments(draft, holder, name)
            if values:
                return _single(drafts, draft, list(values), depth)
    return _class_default(drafts, draft, name, depth)


def _attribute_assigned(draft: Draft, name: str, skip_self: bool) -> bool:
    """Whether the file assigns ``something.name`` itself (``self.name`` aside, when asked)."""
    for target in draft.nodes(cst.Attribute):
        if target.attr.value != name:
            continue
        above = draft.parent(target)
        own = skip_self and get_full_name_for_node(target.value) == "self"
        if isinstance(above, (cst.AssignTarget, cst.AugAssign)) and above.target is target and not own:
            return True
    return False


def _self_assignments(draft: Draft, holder: cst.ClassDef, name: str) -> list[cst.BaseExpression | None]:
    found: list[cst.BaseExpression | None] = []
    for target in draft.nodes(cst.Attribute, holder):
        if target.attr.value != name or get_full_name_for_node(target.value) != "self":
            continue
        above = draft.parent(target)
        if isinstance(above, cst.AssignTarget):
            found.append(cst.ensure_type(draft.parent(above) or above, cst.Assign).value)
        elif isinstance(above, cst.AugAssign) and above.target is target:
            found.append(None)
        elif isinstance(above, cst.AnnAssign) and above.target is target:
            found.append(above.value)
    return found


def _option(draft: Draft, name: str) -> Origin | None:
    """The ``argparse`` option whose destination is `name`; its node is the default, when one is written."""
    parsers = [call for call in draft.nodes(cst.Call) if _method(call) in ("parse_args", "parse_known_args")]
    if not parsers:
        return None
    found: list[tuple[cst.Call, str]] = []
    for call in draft.nodes(cst.Call):
        if _method(call) == "add_argument":
            flags = [string for arg in call.args if (string := string_value(arg.value)) and arg.keyword is None]
            destination = argument(call, "dest")
            long = [flag for flag in flags if flag.startswith("--")]
            if destination is not None:
                matches = string_value(destination.value) == name
            else:
                matches = (long or flags or [""])[0].lstrip("-").replace("-", "_") == name
            if matches:
                found.append((call, (long or flags)[0]))
    if len(found) != 1:
        return None
    call, option = found[0]
    default = argument(call, "default")
    if any(parser.args for parser in parsers):
        # Arguments given in the source: the command line is not read, the default is what counts.
        return Origin(draft, "default", default.value) if default is not None and is_literal(default.value) else None
    if not option.startswith("-") or argument(call, "nargs") is not None:
        return None
    action = argument(call, "action")
    if action is not None:
        sets = string_value(action.value) == "store_true" or _method_name(action.value) == "BooleanOptionalAction"
        return Origin(draft, "flag", call, option) if sets else None
    return Origin(draft, "option", default.value if default is not None else call, option)


def _class_default(drafts: Drafts, draft: Draft, name: str, depth: int) -> Origin | None:
    """A field of a (data)class: ``batch_size: int = 32``, unless the one construction passes another value."""
    for each in with_neighbours(drafts, draft):
        holders: list[tuple[cst.ClassDef, list[cst.BaseExpression | None]]] = []
        for holder in each.nodes(cst.ClassDef):
            values = list(assignments(each, name, holder))
            if values:
                holders.append((holder, values))
        if len(holders) != 1:
            if holders:
                return None
            continue
        holder, values = holders[0]
        passed = []
        for user in {each, draft}:
            for call in user.nodes(cst.Call):
                if (get_full_name_for_node(call.func) or "").rpartition(".")[2] == holder.name.value:
                    if any(arg.star or arg.keyword is None for arg in call.args):
                        return None
                    found = argument(call, name)
                    if found is not None:
                        passed.append((user, found.value))
        if len(passed) > 1:
            return None
        if passed:
            return _follow(drafts, passed[0][0], passed[0][1], "constant", depth)
        if len(values) != 1 or values[0] is None:
            return None
        return _follow(drafts, each, values[0], "default", depth)
    return None


def _method(call: cst.Call) -> str:
    return _method_name(call.func)


def _method_name(node: cst.BaseExpression) -> str:
    return (get_full_name_for_node(node) or "").rpartition(".")[2]


# Dicts -------------------------------------------------------------------------------------------------------------


def _subscript(drafts: Drafts, draft: Draft, node: cst.Subscript, depth: int) -> Origin | None:
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return None
    key = string_value(node.slice[0].slice.value)
    display = dict_display(draft, node.value)
    if not key or display is None:
        return None
    for subscript in draft.nodes(cst.Subscript):
        # Written to elsewhere: config["batch_size"] = …
        if isinstance(draft.parent(subscript), cst.AssignTarget) and key in draft.code(subscript):
            return None
    value = dict_entry(display, key)
    return _follow(drafts, draft, value, "dict", depth) if value is not None else None


