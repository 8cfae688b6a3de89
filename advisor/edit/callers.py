"""Where a function of the script's is called from, in all of its modules, and what it is given there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.changes import is_changed, renames
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, beside, with_word
from advisor.edit.names import full_name, imported_as, imports_anywhere, last_part
from advisor.edit.scopes import (
    assigned_once,
    dict_display,
    dict_entry,
    is_parameter,
    mentions,
    parameter_names,
    scope_of,
    string_value,
    variables,
)

# What a call gives: an expression and the file it stands in, or None where the call leaves the parameter out.
Given = tuple[Draft, cst.BaseExpression | None]
Call = tuple[Draft, cst.Call]
Derived = tuple[Draft, cst.ClassDef]
_MOST_CLASSES = 30  # looked at below one: guards against circles
_BY_TEXT = re.compile(r"\bglobals\(\)|\bFire\(")  # what calls functions by their names as texts
_DEPTH = 4  # functions that pass their ``**kwargs`` on to the next, classes derived from one another
# Decorators that leave the parameters as they are.
_PLAIN = (
    *("staticmethod", "classmethod", "no_grad", "inference_mode", "enable_grad", "cache", "lru_cache", "override"),
    *("contextmanager", "record", "compile", "cached_property", "property", "abstractmethod", "autocast"),
)


def callers(draft: Draft, function: cst.FunctionDef) -> list[cst.Call]:
    """The calls in this file that by their name are of `function`; for ``__init__``, of its class."""
    holder = draft.enclosing_class(function)
    name = function.name.value
    if name == "__init__" and holder is not None:
        name = holder.name.value
    calls = [call for call in draft.nodes(cst.Call) if _called(call) == name]
    return calls if holder is not None else [call for call in calls if isinstance(call.func, cst.Name)]


def calls_of(drafts: Drafts, draft: Draft, function: cst.FunctionDef, depth: int = _DEPTH) -> list[Call] | None:
    """The calls of `function` in all of the script's modules; None where others may be made, by another name, say.

    Those of ``__init__`` are of its class and of the classes derived from it, of which one may call it by ``super()``.
    """
    holder, name = draft.enclosing_class(function), function.name.value
    if holder is not None and name == "__init__":
        name = holder.name.value
    if any(last_part(_decorator(each)) not in _PLAIN for each in function.decorators):
        return None
    for user in with_word(drafts, draft, name):
        if _BY_TEXT.search(user.source.text) or any(_names(user, each, name) for each in user.nodes(cst.SimpleString)):
            return None  # it may be called by its name as a text
    if holder is None and scope_of(draft, function) is not draft.module:
        return _local(draft, function)
    if holder is None:
        return named(drafts, draft, name)
    if function.name.value == "__init__":
        return _made(drafts, draft, holder, depth)
    return _of_method(drafts, draft, holder, function)


def _names(draft: Draft, string: cst.SimpleString, name: str) -> bool:
    """Whether a text is the name, and not one of what the module says that it has."""
    statement = draft.statement(string) if string_value(string) == name else None
    return statement is not None and "__all__" not in draft.code(statement)


def runs_twice(drafts: Drafts, draft: Draft, node: cst.CSTNode, depth: int = 2) -> bool:
    """Whether the function around `node`, or one that calls it, is called at several places of the script.

    As far as that is known: what it makes may then be made several times.
    """
    function = draft.function(node) if depth else None
    try:
        calls = (calls_of(drafts, draft, function) if function is not None else None) or []
    except TooManyFilesError:
        return True
    return len(calls) > 1 or any(runs_twice(drafts, user, call, depth - 1) for user, call in calls)


def given(
    drafts: Drafts, draft: Draft, function: cst.FunctionDef, name: str, by_position: bool = True, depth: int = _DEPTH
) -> list[Given] | None:
    """What each call of the function gives its parameter `name`; None where that cannot be told, or nothing calls it.

    A function that passes its own ``**kwargs`` on gives what it is given.
    """
    names = parameter_names(draft, function) if by_position else []
    found: list[Given] = []
    for user, call in (calls_of(drafts, draft, function) or ()) if depth else ():
        passed = argument(call, name, names)
        stars = [arg for arg in call.args if arg.star]
        if passed is not None and not passed.star:
            found.append((user, passed.value))
        elif not stars:
            found.append((user, None))
        else:
            more = _unpacked(drafts, user, stars[0], name, depth) if len(stars) == 1 else None
            if more is None:
                return None
            found += more
    return found or None


def _unpacked(drafts: Drafts, draft: Draft, star: cst.Arg, name: str, depth: int) -> list[Given] | None:
    """What ``**mapping`` gives: an entry of what is written out, or of the function's own ``**kwargs``."""
    mapping = star.value
    if star.star != "**":
        return None
    if (outer := kwargs_of(draft, mapping)) is not None:
        if is_parameter(outer, name):
            return [(draft, None)]  # which takes it itself
        return passed_on(drafts, draft, outer, name, depth - 1)
    display = mapping if isinstance(mapping, cst.Dict) else dict_display(draft, mapping)
    if display is None or not says_all(display):
        return None
    if isinstance(mapping, (cst.Name, cst.Attribute)) and is_changed(drafts, draft, last_part(mapping)):
        return None
    entry = dict_entry(display, name)
    return [(draft, entry)] if mentions(draft, name) <= (entry is not None) else None


def kwargs_of(draft: Draft, mapping: cst.BaseExpression) -> cst.FunctionDef | None:
    """The function whose own ``**kwargs`` the mapping is."""
    scope = scope_of(draft, mapping)
    if not isinstance(scope, cst.FunctionDef) or scope.params.star_kwarg is None:
        return None
    return scope if isinstance(mapping, cst.Name) and scope.params.star_kwarg.name.value == mapping.value else None


def passed_on(
    drafts: Drafts, draft: Draft, function: cst.FunctionDef, name: str, depth: int = _DEPTH
) -> list[Given] | None:
    """As :func:`given`, of what a function has among its ``**kwargs``; None where it does more than pass these on."""
    kwargs = function.params.star_kwarg
    uses = variables(draft, kwargs.name.value, function.body) if kwargs is not None else []
    if not all(isinstance(above := draft.parent(each), cst.Arg) and above.star == "**" for each in uses):
        return None  # it may be put in, or taken out, on the way
    return given(drafts, draft, function, name, by_position=False, depth=depth)


def says_all(display: cst.Dict | cst.Call) -> bool:
    """Whether all keys of a display are written out."""
    if isinstance(display, cst.Call):
        return all(arg.keyword is not None for arg in display.args)
    return all(isinstance(element, cst.DictElement) and string_value(element.key) for element in display.elements)


def named(drafts: Drafts, draft: Draft, name: str) -> list[Call] | None:
    """The calls of a function or class of the module by its name; None where it is used in any other way."""
    found: list[Call] = []
    for user in with_word(drafts, draft, name):
        if renames(user, name):
            return None
        references = variables(user, name) if user is draft else _references(drafts, user, draft, name)
        for each in references:
            above = user.parent(each)
            if isinstance(above, cst.Call) and above.func is each:
                found.append((user, above))
            elif not _harmless(user, each, above):
                return None
    return found


def _references(drafts: Drafts, user: Draft, draft: Draft, name: str) -> Sequence[cst.BaseExpression]:
    """Where another file may read the name of `draft`: as ``name``, and as ``module.name``."""
    own = [(bound, full) for bound, full in imports_anywhere(user) if _is_own(drafts, user, full)]
    names, modules = {bound for bound, _ in own}, tuple(bound for bound, _ in own)
    attributes = [
        each
        for each in user.nodes(cst.Attribute)
        if each.attr.value == name and (get_full_name_for_node(each.value) or "").partition(".")[0] in modules
    ]
    return [*variables(user, name), *attributes] if {name, "*"} & names else attributes


def _is_own(drafts: Drafts, user: Draft, full: str) -> bool:
    """Whether an import of that name is of a module of the script's, or of what one has."""
    parts = full.rpartition(".")[0]
    named_modules = [each for each in (full, parts) if each.strip(".")]
    return full in ("", ".") or any(beside(drafts, user, each) is not None for each in named_modules)


def _harmless(draft: Draft, node: cst.BaseExpression, above: cst.CSTNode | None) -> bool:
    """A use that calls nothing: the definition itself, an import, an annotation, a base class, ``isinstance``."""
    if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.ImportAlias, cst.ImportFrom)):
        return True
    for each in draft.ancestors(node):
        if isinstance(each, cst.Annotation):
            return True
        if isinstance(each, cst.Arg):
            outer = draft.parent(each)
            if isinstance(outer, cst.ClassDef):
                return True
            return isinstance(outer, cst.Call) and _called(outer) in ("isinstance", "issubclass", "super")
        if isinstance(each, cst.BaseSmallStatement):
            return False
        if isinstance(each, cst.Attribute) and each.attr.value != "__init__" and each.value is node:
            return True  # what the class itself has
    return False


def _local(draft: Draft, function: cst.FunctionDef) -> list[Call] | None:
    """The calls of a function in a function."""
    scope, found = scope_of(draft, function), list[Call]()
    for each in variables(draft, function.name.value, scope):
        above = draft.parent(each)
        if isinstance(above, cst.Call) and above.func is each:
            found.append((draft, above))
        elif above is not function:
            return None
    return found


def _of_method(drafts: Drafts, draft: Draft, holder: cst.ClassDef, function: cst.FunctionDef) -> list[Call] | None:
    """The calls of a method: by ``self`` in its class, or of what is known to be made of that class."""
    name, found = function.name.value, list[Call]()
    below = derived_from(drafts, draft, holder)
    if below is None or name.startswith("__") or name == "forward":
        return None  # which a call of the object is
    own = {holder.name.value, *(each.name.value for _, each in below)}
    of_class = any(last_part(_decorator(each)) in ("classmethod", "staticmethod") for each in function.decorators)
    for user in with_word(drafts, draft, name):
        for each in user.nodes(cst.Attribute):
            if each.attr.value != name:
                continue
            above = user.parent(each)
            around = user.enclosing_class(each)
            called = isinstance(above, cst.Call) and above.func is each
            if isinstance(above, cst.Call) and called and is_super(above, name):
                of = around.name.value if around is not None else ""
                of = of if of in own else "another's"
            elif of_class and isinstance(each.value, cst.Name) and each.value.value in own:
                of = each.value.value
            else:
                of = _class_of(drafts, user, each.value, name)
            if isinstance(above, cst.Call) and called and of in own:
                found.append((user, above))
            elif of in ("", *own):
                return None
    return found


def _class_of(drafts: Drafts, draft: Draft, base: cst.BaseExpression, method: str) -> str:
    """The class that an expression is an object of, or that it is something else; "" where that is not known."""
    if isinstance(base, cst.Name) and base.value == "self":
        holder = draft.enclosing_class(base)
        # A class that has no such method itself may get it from the one that is asked about.
        return holder.name.value if holder is not None and own_method(holder, method) is not None else ""
    if isinstance(base, cst.Call):
        name = full_name(draft, base.func).rpartition(".")[2]
        known = imported_as(draft, (get_full_name_for_node(base.func) or "").partition(".")[0])
        defined = any(each.name.value == name for each in draft.nodes(cst.ClassDef))
        return name if name[:1].isupper() and (known or defined) else ""
    if not isinstance(base, cst.Name):
        return ""
    scope = scope_of(draft, base)
    while scope is not draft.module:
        if is_parameter(scope, base.value):
            return ""
        value = assigned_once(draft, base.value, scope)
        if value is not None:
            return _class_of(drafts, draft, value, method) if isinstance(value, cst.Call) else ""
        scope = scope_of(draft, scope)
    full = imported_as(draft, base.value)
    if full:
        module = beside(drafts, draft, full) is not None or not _is_own(drafts, draft, full)
        return "a module" if module else ""
    value = assigned_once(draft, base.value, draft.module)
    return _class_of(drafts, draft, value, method) if isinstance(value, cst.Call) else ""


def _made(drafts: Drafts, draft: Draft, holder: cst.ClassDef, depth: int) -> list[Call] | None:
    """The calls that make an object of the class by its own ``__init__``."""
    found = named(drafts, draft, holder.name.value) if depth else None
    below = _derived(drafts, draft, holder) if found is not None else None
    if found is None or below is None:
        return None
    found += [(draft, call) for call in _by_class_methods(draft, holder)]
    for user, derived in below:
        if last_part(derived.bases[0].value) != holder.name.value:
            return None  # whose ``super()`` is another class's, or may be
        own = own_method(derived, "__init__")
        more = _made(drafts, user, derived, depth - 1) if own is None else []
        if more is None:
            return None
        calls = user.nodes(cst.Call, own) if own is not None else []
        found += more + [(user, call) for call in calls if is_super(call, "__init__")]
    return found


def _by_class_methods(draft: Draft, holder: cst.ClassDef) -> list[cst.Call]:
    """``cls(…)`` in the class's own class methods."""
    found: list[cst.Call] = []
    for method in holder.body.body:
        if not isinstance(method, cst.FunctionDef):
            continue
        parameters = (*method.params.posonly_params, *method.params.params)
        if parameters and any(last_part(_decorator(each)) == "classmethod" for each in method.decorators):
            of_class = parameters[0].name.value
            calls = draft.nodes(cst.Call, method)
            found += [each for each in calls if isinstance(each.func, cst.Name) and each.func.value == of_class]
    return found


def derived_from(drafts: Drafts, draft: Draft, holder: cst.ClassDef) -> list[Derived] | None:
    """The script's classes that are derived from a class, also by way of others; None where one may go unseen."""
    found: list[Derived] = []
    todo = [(draft, holder)]
    while todo and len(found) < _MOST_CLASSES:
        more = _derived(drafts, *todo.pop(0))
        if more is None:
            return None
        found += more
        todo += more
    return found


def _derived(drafts: Drafts, draft: Draft, holder: cst.ClassDef) -> list[Derived] | None:
    name, found = holder.name.value, list[Derived]()
    for user in with_word(drafts, draft, name):
        if renames(user, name):
            return None
        references = set(variables(user, name) if user is draft else _references(drafts, user, draft, name))
        for each in user.nodes(cst.ClassDef):
            if each is not holder and any(base.value in references for base in each.bases):
                found.append((user, each))
    return found


def own_method(holder: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    """The method of that name that the class itself defines."""
    methods = [each for each in holder.body.body if isinstance(each, cst.FunctionDef)]
    return next((each for each in methods if each.name.value == name), None)


def is_super(call: cst.Call, name: str) -> bool:
    """``super().name(…)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != name or not isinstance(func.value, cst.Call):
        return False
    return get_full_name_for_node(func.value.func) == "super"


def _decorator(decorator: cst.Decorator) -> cst.BaseExpression:
    node = decorator.decorator
    return node.func if isinstance(node, cst.Call) else node


def _called(call: cst.Call) -> str:
    return (get_full_name_for_node(call.func) or "").rpartition(".")[2]
