"""Where a function of the script's is called from, in all of its modules, and what it is given there."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_word
from advisor.edit.names import imported_as, last_part
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
    holder = draft.enclosing_class(function)
    if any(last_part(_decorator(each)) not in _PLAIN for each in function.decorators):
        return None
    if holder is None and scope_of(draft, function) is not draft.module:
        return _local(draft, function)
    if holder is None:
        return _named(drafts, draft, function.name.value)
    if function.name.value == "__init__":
        return _made(drafts, draft, holder, depth)
    return _of_method(drafts, draft, holder, function)


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
    mapping, scope = star.value, scope_of(draft, star)
    if star.star != "**":
        return None
    if isinstance(scope, cst.FunctionDef) and isinstance(mapping, cst.Name):
        kwargs = scope.params.star_kwarg
        if kwargs is not None and kwargs.name.value == mapping.value:
            if is_parameter(scope, name):
                return [(draft, None)]  # which takes it itself
            uses = variables(draft, mapping.value, scope.body)
            if not all(isinstance(above := draft.parent(each), cst.Arg) and above.star == "**" for each in uses):
                return None  # it may be put in, or taken out, on the way
            return given(drafts, draft, scope, name, by_position=False, depth=depth - 1)
    display = mapping if isinstance(mapping, cst.Dict) else dict_display(draft, mapping)
    if display is None or not _says_all(display):
        return None
    entry = dict_entry(display, name)
    return [(draft, entry)] if mentions(draft, name) <= (entry is not None) else None


def _says_all(display: cst.Dict | cst.Call) -> bool:
    if isinstance(display, cst.Call):
        return all(arg.keyword is not None for arg in display.args)
    return all(isinstance(element, cst.DictElement) and string_value(element.key) for element in display.elements)


def _named(drafts: Drafts, draft: Draft, name: str) -> list[Call] | None:
    """The calls of a function or class of the module by its name; None where it is used in any other way."""
    found: list[Call] = []
    for user in with_word(drafts, draft, name):
        if user is draft:
            references: list[cst.BaseExpression] = [*variables(user, name)]
        elif _renames(user, name):
            return None
        else:
            references = [each for each in _references(user, name) if _is_module(drafts, user, each, draft)]
        for each in references:
            above = user.parent(each)
            if isinstance(above, cst.Call) and above.func is each:
                found.append((user, above))
            elif not _harmless(user, each, above):
                return None
    return found


def _references(draft: Draft, name: str) -> list[cst.BaseExpression]:
    """``name``, and ``module.name``."""
    attributes = [each for each in draft.nodes(cst.Attribute) if each.attr.value == name]
    return [*variables(draft, name), *attributes]


def _is_module(drafts: Drafts, user: Draft, reference: cst.BaseExpression, draft: Draft) -> bool:
    """Whether what is imported into another file may be the one of `draft`: by way of a package, too."""
    first = (get_full_name_for_node(reference) or "").partition(".")[0]
    module = imported_as(user, first)
    named = [each for each in (module, module.rpartition(".")[0]) if each.strip(".")]
    return any((other := beside(drafts, user, each)) is not None and other is not user for each in named)


def _renames(draft: Draft, name: str) -> bool:
    """``from data import make as m``."""
    aliases = [each for each in draft.nodes(cst.ImportAlias) if each.asname is not None]
    return any(last_part(each.name) == name != each.evaluated_alias for each in aliases)


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
    own = {holder.name.value, *(each.name.value for _, each in derived_from(drafts, draft, holder))}
    for user in with_word(drafts, draft, name):
        for each in user.nodes(cst.Attribute):
            if each.attr.value != name:
                continue
            above = user.parent(each)
            called = isinstance(above, cst.Call) and above.func is each
            of = _class_of(user, each.value)
            if isinstance(above, cst.Call) and called and (of in own or is_super(above, name)):
                found.append((user, above))
            elif of in ("", *own):
                return None
    return found


def _class_of(draft: Draft, base: cst.BaseExpression) -> str:
    """The class that an expression is an object of, or what else it is known to be; "" where that is not known."""
    if isinstance(base, cst.Name) and base.value == "self":
        holder = draft.enclosing_class(base)
        return holder.name.value if holder is not None else ""
    if isinstance(base, cst.Call):
        return _called(base) if _called(base)[:1].isupper() else ""
    if not isinstance(base, cst.Name):
        return ""
    if imported_as(draft, base.value) and not base.value[:1].isupper():
        return "module"
    value = assigned_once(draft, base.value, scope_of(draft, base)) or assigned_once(draft, base.value, draft.module)
    return _class_of(draft, value) if isinstance(value, cst.Call) else ""


def _made(drafts: Drafts, draft: Draft, holder: cst.ClassDef, depth: int) -> list[Call] | None:
    """The calls that make an object of the class by its own ``__init__``."""
    found = _named(drafts, draft, holder.name.value) if depth else None
    if found is None:
        return None
    for user, derived in derived_from(drafts, draft, holder):
        if last_part(derived.bases[0].value) != holder.name.value:
            return None  # whose ``super()`` is another class's, or may be
        own = own_method(derived, "__init__")
        more = _made(drafts, user, derived, depth - 1) if own is None else []
        if more is None:
            return None
        calls = user.nodes(cst.Call, own) if own is not None else []
        found += more + [(user, call) for call in calls if is_super(call, "__init__")]
    return found


def derived_from(drafts: Drafts, draft: Draft, holder: cst.ClassDef) -> list[tuple[Draft, cst.ClassDef]]:
    """The script's classes that are derived from a class by its name."""
    name, found = holder.name.value, list[tuple[Draft, cst.ClassDef]]()
    for user in with_word(drafts, draft, name):
        for each in user.nodes(cst.ClassDef):
            bases = [base.value for base in each.bases if last_part(base.value) == name]
            own = user is draft or any(_is_module(drafts, user, base, draft) for base in bases)
            if bases and each is not holder and own:
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
