"""All that a script does with one module, under whatever names it knows it: what changes the module concerns it all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.models import Binding
from advisor.edit.names import last_part
from advisor.edit.scopes import assignments, parameter_names, scope_of

# Methods that neither compute nor hand out what was computed with.
_SETS = ("to", "cuda", "cpu", "eval", "train", "half", "bfloat16", "float", "double", "requires_grad_", "apply")
_LISTS = ("parameters", "named_parameters", "buffers", "state_dict", "load_state_dict", "modules", "training")
_TYPES = ("half", "bfloat16", "float", "double")
_DTYPES = ("float16", "bfloat16", "float32", "float64", *_TYPES)
_ONLY_LOOK = ("print", "len", "isinstance", "type", "id", "repr", "str")

_MADE_TWICE = "the script makes its model in several places"
_PARTS = "the script also uses parts of the model, or other methods of it"
_HANDED_ON = "the script hands the model on to code that may call it, too"
_TOO_EARLY = "the script calls the model before it is converted"
_KEPT = "the script reads the model's weights, to keep them perhaps, which would be those in 16 bits"
_CONVERTED = "the script converts the model itself"
_REPLACED = "the script loads other weights with assign=True, in the type that they were saved in"
_LOADING = ("state_dict", "strict", "assign")  # parameters of load_state_dict


@dataclass(frozen=True)
class _Variable:
    """A name in the scope that binds it; an attribute's name in the class whose ``self`` has it, or None."""

    draft: Draft
    scope: cst.CSTNode | None
    name: str
    attribute: bool


def other_calls(bound: Binding, forwards: Sequence[tuple[Draft, cst.Call]]) -> list[tuple[Draft, cst.Call]] | str:
    """The calls of the model beside `forwards`; or a clause that says what else is done with it, or may be."""
    known = {call for _, call in forwards}
    files = list(dict.fromkeys((bound.draft, *(draft for draft, _ in forwards))))
    target = cst.parse_expression(bound.name)
    todo = [_variable(bound.draft, target, bound.statement)]
    todo += [_variable(draft, call.func, call) for draft, call in forwards]
    seen: set[_Variable] = set()
    found: dict[cst.Call, Draft] = {}
    while todo:
        variable = todo.pop()
        if variable in seen:
            continue
        seen.add(variable)
        draft = variable.draft
        sources = _sources(variable)
        if len({draft.code(each) if each is not None else "" for each in sources}) > 1:
            return _MADE_TWICE
        todo += [_variable(draft, each, each) for each in sources if isinstance(each, (cst.Name, cst.Attribute))]
        for node in _mentions(variable):
            above = draft.parent(node)
            if isinstance(above, cst.Call):  # its function: an argument's parent is the Arg
                found[above] = draft
            elif isinstance(above, cst.Attribute):
                if not _harmless(draft, above, variable.name):
                    return _PARTS
                if _reads_state(draft, above) and not _before(bound, draft, above):
                    return _KEPT
                if _retypes(draft, above) and not _before(bound, draft, above):
                    return _CONVERTED
                if _assigns(draft.parent(above)) and not _before(bound, draft, above):
                    return _REPLACED
            elif isinstance(above, cst.Arg):
                call = cst.ensure_type(draft.parent(above) or above, cst.Call)
                parameter = _parameter(files, call, above)
                if parameter is not None:
                    todo.append(parameter)
                elif last_part(call.func) not in _ONLY_LOOK and not last_part(call.func).startswith("load"):
                    return _HANDED_ON
            elif isinstance(above, cst.Assign):
                if not all(isinstance(each.target, (cst.Name, cst.Attribute)) for each in above.targets):
                    return _HANDED_ON
                todo.extend(_variable(draft, each.target, above) for each in above.targets)
            elif not isinstance(above, (cst.Return, cst.Expr, cst.Del)):
                return _HANDED_ON
            todo += _given_out(draft, node)
    others = [(draft, call) for call, draft in found.items() if call not in known]
    early = (_before(bound, draft, call) for draft, call in (*forwards, *others))
    return _TOO_EARLY if any(early) else others


def past_loading(bound: Binding) -> Binding:
    """The same behind the last ``model.load_state_dict(…, assign=True)`` of its block, which replaces the weights."""
    siblings = bound.draft.siblings(bound.statement)
    for each in reversed(siblings[siblings.index(bound.statement) :]):
        loads = (_assigns(call) and _called_of(call) == bound.name for call in bound.draft.nodes(cst.Call, each))
        if isinstance(each, cst.SimpleStatementLine) and any(loads):
            return replace(bound, statement=each)
    return bound


def _before(bound: Binding, draft: Draft, node: cst.CSTNode) -> bool:
    """Whether something is in front of the statement behind which the model is converted, or in it."""
    same = draft is bound.draft and scope_of(draft, node) is scope_of(draft, bound.statement)
    return same and draft.line(node) <= draft.line(bound.statement)


def _called_of(call: cst.Call) -> str:
    return (get_full_name_for_node(call.func.value) or "") if isinstance(call.func, cst.Attribute) else ""


def _assigns(call: cst.CSTNode | None) -> bool:
    """``….load_state_dict(state, assign=True)``: the module gets the very tensors of `state`."""
    if not isinstance(call, cst.Call) or last_part(call.func) != "load_state_dict":
        return False
    given = argument(call, "assign", _LOADING)
    return given is not None and last_part(given.value) != "False"


def _reads_state(draft: Draft, method: cst.Attribute) -> bool:
    """``net.state_dict()`` for anything but its names or their number: ``len(…)``, ``set(…)``, ``name in …``."""
    above = draft.parent(draft.parent(method) or method)
    if method.attr.value != "state_dict":
        return False
    if isinstance(above, cst.Attribute):
        return above.attr.value != "keys"
    if isinstance(above, (cst.ComparisonTarget, cst.For, cst.CompFor)):
        return False
    call = draft.parent(above) if isinstance(above, cst.Arg) else None
    return not isinstance(call, cst.Call) or last_part(call.func) not in ("len", "set", "sorted", "list", "tuple")


def _retypes(draft: Draft, method: cst.Attribute) -> bool:
    """``net.float()``, ``net.to(torch.float32)``, also behind ``net.eval()``."""
    above: cst.CSTNode | None = method
    while isinstance(above, cst.Attribute):
        call = draft.parent(above)
        if above.attr.value in _TYPES:
            return True
        given = call.args if above.attr.value == "to" and isinstance(call, cst.Call) else ()
        typed = (arg.keyword is not None and arg.keyword.value == "dtype" for arg in given)
        if any(typed) or any(last_part(arg.value) in _DTYPES or last_part(arg.value) == "dtype" for arg in given):
            return True
        above = draft.parent(call) if isinstance(call, cst.Call) else None
    return False


def _variable(draft: Draft, name: cst.BaseExpression, where: cst.CSTNode) -> _Variable:
    if isinstance(name, cst.Attribute):
        own = get_full_name_for_node(name.value) == "self"
        return _Variable(draft, draft.enclosing_class(where) if own else None, name.attr.value, True)
    return _Variable(draft, _binding_scope(draft, last_part(name), where), last_part(name), False)


def _binding_scope(draft: Draft, name: str, where: cst.CSTNode) -> cst.CSTNode:
    """The function or module that `name` belongs to where it is read."""
    scope = scope_of(draft, where)
    while scope is not draft.module:
        bound = any(True for _ in assignments(draft, name, scope)) or _has_parameter(scope, name)
        if bound and not isinstance(scope, cst.ClassDef):
            return scope
        scope = scope_of(draft, scope)
    return scope


def _has_parameter(scope: cst.CSTNode, name: str) -> bool:
    parameters = scope.params if isinstance(scope, (cst.FunctionDef, cst.Lambda)) else None
    groups = (parameters.posonly_params, parameters.params, parameters.kwonly_params) if parameters is not None else ()
    return any(each.name.value == name for group in groups for each in group)


def _mentions(variable: _Variable) -> Iterator[cst.BaseExpression]:
    """Where the variable is read."""
    draft = variable.draft
    for name in draft.nodes(cst.Name):
        above = draft.parent(name)
        attribute = isinstance(above, cst.Attribute) and above.attr is name
        if name.value != variable.name or attribute != variable.attribute or isinstance(above, cst.Param):
            continue
        node = above if isinstance(above, cst.Attribute) and attribute else name
        place = draft.parent(node)
        if isinstance(place, (cst.AssignTarget, cst.AnnAssign)) or (
            isinstance(place, cst.Arg) and place.keyword is node
        ):
            continue
        if attribute and _of_another_class(variable, node):
            continue
        if attribute or _binding_scope(draft, name.value, name) is variable.scope:
            yield node


def _of_another_class(variable: _Variable, node: cst.BaseExpression) -> bool:
    """Whether a ``self.net`` is that of another class, which makes one itself."""
    draft, holder = variable.draft, variable.draft.enclosing_class(node)
    if holder is None or holder is variable.scope or get_full_name_for_node(node) != f"self.{variable.name}":
        return False
    return bool(_sources(_Variable(draft, holder, variable.name, True)))


def _sources(variable: _Variable) -> list[cst.BaseExpression | None]:
    """What the variable may stand for: values that are not made of itself, and what callers pass; None: anything."""
    draft, scope, name = variable.draft, variable.scope, variable.name
    if variable.attribute:
        targets = draft.nodes(cst.AssignTarget, scope) if scope is not None else []
        found = [draft.parent(each) for each in targets if get_full_name_for_node(each.target) == f"self.{name}"]
        values: list[cst.BaseExpression | None] = [each.value for each in found if isinstance(each, cst.Assign)]
    else:
        values = list(assignments(draft, name, scope or draft.module))
    written = f"self.{name}" if variable.attribute else name
    values = [each for each in values if each is None or not _made_of(draft, each, written)]
    if isinstance(scope, cst.FunctionDef) and not variable.attribute and _has_parameter(scope, name):
        names = parameter_names(draft, scope)
        passed = (argument(call, name, names) for call in callers(draft, scope))
        values += [each.value for each in passed if each is not None]
    return values


def _given_out(draft: Draft, node: cst.BaseExpression) -> list[_Variable]:
    """What the callers of a function that returns the module, as it is or as ``net.eval()``, call it."""
    statement, function = draft.statement(node), draft.function(node)
    returned = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(returned, cst.Return) or function is None or returned.value is None:
        return []
    value = returned.value
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _SETS:
        value = value.func.value
    if value is not node:
        return []
    assigned = [draft.parent(call) for call in callers(draft, function)]
    return [_variable(draft, t.target, each) for each in assigned if isinstance(each, cst.Assign) for t in each.targets]


def _made_of(draft: Draft, value: cst.BaseExpression, written: str) -> bool:
    """``net.eval()`` of ``net``; None stands for nothing yet."""
    names = (*draft.nodes(cst.Name, value), *draft.nodes(cst.Attribute, value))
    return draft.code(value) == "None" or any(get_full_name_for_node(each) == written for each in names)


def _harmless(draft: Draft, method: cst.Attribute, name: str) -> bool:
    """``net.eval()`` as a statement or under the same name, ``net.parameters()`` anywhere."""
    if method.attr.value in _LISTS:
        return True
    call = draft.parent(method)
    if method.attr.value not in _SETS or not isinstance(call, cst.Call) or call.func is not method:
        return False
    above = draft.parent(call)
    if isinstance(above, cst.Attribute):
        return _harmless(draft, above, name)
    same = isinstance(above, cst.Assign) and all(last_part(each.target) == name for each in above.targets)
    return same or isinstance(above, (cst.Expr, cst.Return))


def _parameter(files: Sequence[Draft], call: cst.Call, given: cst.Arg) -> _Variable | None:
    """The parameter that a function of these files, or a class's ``__init__``, takes the argument as."""
    name = last_part(call.func)
    functions = []
    for draft in files:
        for each in draft.nodes(cst.FunctionDef):
            holder = draft.enclosing_class(each) if each.name.value == "__init__" else None
            if name == (holder.name.value if holder is not None else each.name.value):
                functions.append((draft, each))
    if len(functions) != 1:
        return None
    ((draft, function),) = functions
    names = parameter_names(draft, function)
    passed = next((each for each in names if argument(call, each, names) is given), None)
    return _Variable(draft, function, passed, False) if passed is not None else None
