"""Where the value of an expression comes from: the place to change it at, or the command-line option.

Only what the text decides is followed: a literal, a name assigned once, a parameter with one caller or a default, an
``argparse`` option, a class-level default, an entry of a dict display. Everything else is None: a rule then gives
advice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.names import imported_as

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


def is_literal(node: cst.BaseExpression) -> bool:
    """A value written out: number, string, True, False, None, also negative."""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.expression, (cst.Integer, cst.Float))
    return isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)) or (
        isinstance(node, cst.Name) and node.value in ("True", "False", "None")
    )


# Names -------------------------------------------------------------------------------------------------------------


def assigned_once(draft: Draft, name: str, within: cst.CSTNode) -> cst.BaseExpression | None:
    """The value of the only assignment to `name` directly in this scope; None if there is none, or several."""
    values = list(assignments(draft, name, within))
    return values[0] if len(values) == 1 else None


def held_once(draft: Draft, node: cst.Name) -> tuple[cst.BaseExpression, cst.SimpleStatementLine] | None:
    """What a name is given in the line right before the one that reads it, and nothing else does: value and line.

    The line can go where the value is written in the name's place: nothing runs between the two.
    """
    scope, here = scope_of(draft, node), draft.statement(node)
    if isinstance(scope, cst.ClassDef) or not isinstance(here, cst.SimpleStatementLine):
        return None
    for above in draft.ancestors(node):
        if above is here:
            break
        if isinstance(above, (cst.Lambda, cst.BaseComp)):  # whose names may hide others, and which may run later
            return None
    value = assigned_once(draft, node.value, scope)
    siblings = draft.siblings(here)
    before = siblings[siblings.index(here) - 1] if siblings.index(here) else None
    if value is None or not isinstance(before, cst.SimpleStatementLine) or draft.statement(value) is not before:
        return None
    return (value, before) if len(before.body) == 1 and len(variables(draft, node.value, scope)) == 2 else None


def variables(draft: Draft, name: str, scope: cst.CSTNode | None = None) -> list[cst.Name]:
    """Where a scope, or the file, reads or binds a name: no attributes, nor names of arguments."""
    return [each for each in draft.nodes(cst.Name, scope) if each.value == name and _is_variable(draft, each)]


def _is_variable(draft: Draft, node: cst.Name) -> bool:
    above = draft.parent(node)
    return not (isinstance(above, cst.Attribute) and above.attr is node) and not (
        isinstance(above, cst.Arg) and above.keyword is node
    )


def assignments(draft: Draft, name: str, scope: cst.CSTNode) -> Iterator[cst.BaseExpression | None]:
    """What `name` is bound to in a scope (module, class or function), nested scopes aside.

    None stands for a binding that is no plain assignment: a loop variable, ``with … as``, ``+=``, an unpacking, one
    value for several names.
    """
    for node in draft.nodes(cst.Name, scope):
        if node.value != name or scope_of(draft, node) is not scope:
            continue
        above = draft.parent(node)
        if isinstance(above, cst.AssignTarget):
            statement = draft.parent(above)
            yield statement.value if isinstance(statement, cst.Assign) and len(statement.targets) == 1 else None
        elif isinstance(above, cst.AnnAssign) and above.target is node:
            if above.value is not None:
                yield above.value
        elif _binds_otherwise(draft, node, above):
            yield None


def _binds_otherwise(draft: Draft, node: cst.Name, above: cst.CSTNode | None) -> bool:
    if isinstance(above, (cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)):
        return above.target is node
    target: cst.CSTNode = node
    while isinstance(above, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):  # of an unpacking
        target, above = above, draft.parent(above)
    if target is not node:
        return isinstance(above, cst.AssignTarget) or (
            isinstance(above, (cst.For, cst.CompFor)) and above.target is target
        )
    return isinstance(above, (cst.AsName, cst.NameItem))


def scope_of(draft: Draft, node: cst.CSTNode) -> cst.CSTNode:
    """The function, class or module whose scope a name belongs to. Defaults and decorators count as outside."""
    inner = node
    for above in draft.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)) and inner is above.body:
            return above
        if isinstance(above, cst.Lambda) and inner is above.body:
            return above
        inner = above
    return draft.module


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


def beside(drafts: Drafts, draft: Draft, module: str) -> Draft | None:
    """The draft of a module whose file lies beside the given file, or where a relative import points."""
    if not module.strip("."):
        return None
    folder = os.path.dirname(draft.source.path)
    name = module.lstrip(".")
    for _ in range(len(module) - len(name) - 1):
        folder = os.path.dirname(folder)
    path = os.path.join(folder, *name.split(".")) + ".py"
    return drafts[path] if drafts.sources.has(path) and drafts.sources.editable(path) else None


# Parameters --------------------------------------------------------------------------------------------------------


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    return [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]


def _parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    return next((each for each in _parameters(function) if each.name.value == name), None)


def is_parameter(scope: cst.CSTNode, name: str) -> bool:
    """Whether a function or lambda has a parameter of that name, ``*args`` and ``**kwargs`` included."""
    if not isinstance(scope, (cst.FunctionDef, cst.Lambda)):
        return False
    given = scope.params
    stars = [each for each in (given.star_arg, given.star_kwarg) if isinstance(each, cst.Param)]
    return name in {each.name.value for each in (*given.posonly_params, *given.params, *given.kwonly_params, *stars)}


def callers(draft: Draft, function: cst.FunctionDef) -> list[cst.Call]:
    """The calls in this file that by their name are of `function`; for ``__init__``, of its class."""
    holder = draft.enclosing_class(function)
    name = function.name.value
    if name == "__init__" and holder is not None:
        name = holder.name.value
    return [
        call for call in draft.nodes(cst.Call) if (get_full_name_for_node(call.func) or "").rpartition(".")[2] == name
    ]


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


def parameter_names(draft: Draft, function: cst.FunctionDef) -> list[str]:
    """The parameters that a caller may pass by position, ``self`` aside."""
    names = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    return names[1:] if draft.enclosing_class(function) is not None and names[:1] in (["self"], ["cls"]) else names


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


def with_neighbours(drafts: Drafts, draft: Draft) -> Iterator[Draft]:
    """This file, and the modules beside it that it imports from."""
    yield draft
    seen = {draft.source.path}
    for statement in draft.nodes(cst.ImportFrom):
        module = "." * len(statement.relative)
        module += (get_full_name_for_node(statement.module) or "") if statement.module is not None else ""
        other = beside(drafts, draft, module)
        if other is not None and other.source.path not in seen:
            seen.add(other.source.path)
            yield other


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


def string_value(node: cst.BaseExpression) -> str:
    """The text of a plain string literal; empty for anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else ""


# Dicts -------------------------------------------------------------------------------------------------------------


def dict_display(draft: Draft, name: cst.BaseExpression) -> cst.Dict | cst.Call | None:
    """The ``{…}`` or ``dict(…)`` that the only assignment to a name gives it."""
    if not isinstance(name, cst.Name):
        return None
    scope = scope_of(draft, name)
    while True:
        values = list(assignments(draft, name.value, scope))
        if values:
            value = values[0] if len(values) == 1 else None
            if isinstance(value, cst.Dict):
                return value
            if isinstance(value, cst.Call) and get_full_name_for_node(value.func) == "dict":
                return value
            return None
        if scope is draft.module or is_parameter(scope, name.value):
            return None
        scope = scope_of(draft, scope)


def dict_entry(display: cst.Dict | cst.Call, key: str) -> cst.BaseExpression | None:
    """The value that a dict display has for a string key."""
    if isinstance(display, cst.Call):
        found = argument(display, key)
        return found.value if found is not None else None
    for element in display.elements:
        if isinstance(element, cst.DictElement) and string_value(element.key) == key:
            return element.value
    return None


def mentions(draft: Draft, key: str) -> int:
    """How often a name occurs in the file as a string, a keyword, or a subscripted or plain name."""
    strings = sum(string_value(node) == key for node in draft.nodes(cst.SimpleString))
    keywords = sum(arg.keyword is not None and arg.keyword.value == key for arg in draft.nodes(cst.Arg))
    return strings + keywords


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


def parse_number(node: cst.BaseExpression) -> float | None:
    """The number that a literal is, if it is one."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return float(node.evaluated_value)
    return None


def literal_equals(node: cst.BaseExpression, value: object) -> bool:
    """Whether a literal is written as `value` would be: guards against changing a number that means another thing."""
    if isinstance(value, bool) or value is None:
        return isinstance(node, cst.Name) and node.value == repr(value)
    if isinstance(value, (int, float)):
        return parse_number(node) == float(value)
    return string_value(node) == value
