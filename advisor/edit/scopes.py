"""Names and their scopes in one file: what a name is bound to, what a dict display says, what a literal is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft


def is_literal(node: cst.BaseExpression) -> bool:
    """A value written out: number, string, True, False, None, also negative."""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.expression, (cst.Integer, cst.Float))
    return isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)) or (
        isinstance(node, cst.Name) and node.value in ("True", "False", "None")
    )


def assigned_once(draft: Draft, name: str, within: cst.CSTNode) -> cst.BaseExpression | None:
    """The value of the only assignment to `name` directly in this scope; None if there is none, or several."""
    values = list(assignments(draft, name, within))
    return values[0] if len(values) == 1 else None


def imports(draft: Draft, name: str, scope: cst.CSTNode) -> bool:
    """Whether an import in this scope binds the name."""
    for alias in draft.nodes(cst.ImportAlias, scope):
        bound = alias.evaluated_alias or (get_full_name_for_node(alias.name) or "").partition(".")[0]
        if bound == name and scope_of(draft, alias) is scope:
            return True
    return False


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


def assignments(
    draft: Draft, name: str, scope: cst.CSTNode, elements: bool = False
) -> Iterator[cst.BaseExpression | None]:
    """What `name` is bound to in a scope (module, class or function), nested scopes aside.

    None stands for a binding that is no plain assignment: a loop variable, ``with … as``, ``+=``, an unpacking, one
    value for several names. With `elements` of ``a, b = 1, 2`` the element is given, whose statement is not its own.
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
            yield _element(draft, node) if elements else None


def _element(draft: Draft, target: cst.CSTNode) -> cst.BaseExpression | None:
    """What a target is given by ``a, b = 1, 2``."""
    element = draft.parent(target)
    targets = draft.parent(element) if isinstance(element, cst.Element) else None
    holder = draft.parent(targets) if isinstance(targets, cst.Tuple) else None
    statement = draft.parent(holder) if isinstance(holder, cst.AssignTarget) else None
    if not isinstance(targets, cst.Tuple) or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    values = statement.value
    if not isinstance(values, cst.Tuple) or len(values.elements) != len(targets.elements):
        return None
    if not all(isinstance(each, cst.Element) for each in (*values.elements, *targets.elements)):
        return None
    return values.elements[list(targets.elements).index(cst.ensure_type(element or targets, cst.Element))].value


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
    if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.MatchAs)):
        return above.name is node
    return isinstance(above, (cst.AsName, cst.NameItem))


def is_bound_elsewhere(draft: Draft, name: str) -> bool:
    """Whether a function may bind the name of a scope around it."""
    items = [item for each in draft.nodes(cst.Global) for item in each.names]
    items += [item for each in draft.nodes(cst.Nonlocal) for item in each.names]
    return any(item.name.value == name for item in items)


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


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    return [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]


def parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    return next((each for each in _parameters(function) if each.name.value == name), None)


def is_parameter(scope: cst.CSTNode, name: str) -> bool:
    """Whether a function or lambda has a parameter of that name, ``*args`` and ``**kwargs`` included."""
    if not isinstance(scope, (cst.FunctionDef, cst.Lambda)):
        return False
    given = scope.params
    stars = [each for each in (given.star_arg, given.star_kwarg) if isinstance(each, cst.Param)]
    return name in {each.name.value for each in (*given.posonly_params, *given.params, *given.kwonly_params, *stars)}


def parameter_names(draft: Draft, function: cst.FunctionDef) -> list[str]:
    """The parameters that a caller may pass by position, ``self`` aside."""
    names = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    return names[1:] if draft.enclosing_class(function) is not None and names[:1] in (["self"], ["cls"]) else names


def string_value(node: cst.BaseExpression) -> str:
    """The text of a plain string literal; empty for anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else ""


def self_assignments(
    draft: Draft, holder: cst.ClassDef | cst.FunctionDef, name: str
) -> list[cst.BaseExpression | None]:
    """What ``self.name`` is given in a class or one of its methods; None for what is no plain assignment."""
    targets = [each for each in draft.nodes(cst.Attribute, holder) if each.attr.value == name]
    own = [each for each in targets if get_full_name_for_node(each.value) == "self"]
    return [value for each in own for value in attribute_assignment(draft, each)]


def attribute_assignment(draft: Draft, target: cst.Attribute) -> list[cst.BaseExpression | None]:
    """What ``x.name`` is given there: a value, None for what is no plain assignment; nothing where it is read."""
    above = draft.parent(target)
    if isinstance(above, cst.AssignTarget):
        statement = cst.ensure_type(draft.parent(above) or above, cst.Assign)
        return [statement.value if len(statement.targets) == 1 else None]
    if isinstance(above, cst.AnnAssign):
        return [above.value] if above.target is target else []
    if isinstance(above, (cst.AugAssign, cst.For, cst.CompFor, cst.AsName, cst.Del)):
        return [None] if getattr(above, "target", target) is target or isinstance(above, (cst.AsName, cst.Del)) else []
    inner: cst.CSTNode = target
    while isinstance(above, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):  # of an unpacking
        inner, above = above, draft.parent(above)
    bound = isinstance(above, cst.AssignTarget) or (isinstance(above, cst.For) and above.target is inner)
    return [_element(draft, target)] if inner is not target and bound else []


def is_target(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a name, an attribute or an item is given a value there, also in an unpacking, or taken away."""
    target, above = node, draft.parent(node)
    while isinstance(above, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):
        target, above = above, draft.parent(above)
    if isinstance(above, (cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr)):
        return above.target is target
    return isinstance(above, (cst.AssignTarget, cst.AsName, cst.Del))


def bound_behind(draft: Draft, node: cst.CSTNode, place: cst.CSTNode) -> bool:
    """Whether a name or an attribute that `node` reads is given a value from the line of `place` on, in its scope."""
    read = {draft.code(each) for kind in (cst.Name, cst.Attribute) for each in draft.nodes(kind, node)}
    scope, line = scope_of(draft, place), draft.line(place)
    there: list[cst.CSTNode] = [*draft.nodes(cst.Name, scope), *draft.nodes(cst.Attribute, scope)]
    return any(draft.line(each) >= line and is_target(draft, each) and draft.code(each) in read for each in there)


def dict_display(draft: Draft, name: cst.BaseExpression) -> cst.Dict | cst.Call | None:
    """The ``{…}`` or ``dict(…)`` that the only assignment gives a name or ``self.name``.

    Of a call it is what the function of this file gives back.
    """
    if isinstance(name, cst.Attribute) and get_full_name_for_node(name.value) == "self":
        holder = draft.enclosing_class(name)
        values = self_assignments(draft, holder, name.attr.value) if holder is not None else []
        return _display(draft, values[0]) if len(values) == 1 else None
    if not isinstance(name, cst.Name):
        return _display(draft, name) if isinstance(name, cst.Call) else None
    scope, own = scope_of(draft, name), True
    while True:
        # What a class has is no name of its methods.
        values = list(assignments(draft, name.value, scope)) if own or not isinstance(scope, cst.ClassDef) else []
        if values:
            return _display(draft, values[0]) if len(values) == 1 else None
        if scope is draft.module or is_parameter(scope, name.value):
            return None
        scope, own = scope_of(draft, scope), False


def _display(draft: Draft, value: cst.BaseExpression | None) -> cst.Dict | cst.Call | None:
    if isinstance(value, cst.Dict):
        return value
    if not isinstance(value, cst.Call):
        return None
    called = get_full_name_for_node(value.func)
    if called == "dict":
        return value
    functions = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == called]
    plain = all(scope_of(draft, each) is draft.module and not each.decorators for each in functions)
    functions = functions if plain else []
    returned = [each.value for each in draft.nodes(cst.Return, functions[0])] if len(functions) == 1 else []
    made = returned[0] if len(returned) == 1 else None
    return made if isinstance(made, cst.Dict) else None


def dict_entry(display: cst.Dict | cst.Call, key: str) -> cst.BaseExpression | None:
    """The value that a dict display has for a string key; None, too, where what comes behind it may have another."""
    if isinstance(display, cst.Call):
        found = argument(display, key)
        return found.value if found is not None else None
    value: cst.BaseExpression | None = None
    for element in display.elements:
        if not isinstance(element, cst.DictElement):
            value = None
        elif string_value(element.key) == key:
            value = element.value
    return value


def mentions(draft: Draft, key: str) -> int:
    """How often a name occurs in the file as a string, a keyword, or a subscripted or plain name."""
    strings = sum(string_value(node) == key for node in draft.nodes(cst.SimpleString))
    keywords = sum(arg.keyword is not None and arg.keyword.value == key for arg in draft.nodes(cst.Arg))
    return strings + keywords


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
