"""Where a function of the script's is called from, in all of its modules, and what it is given there."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_word
from advisor.edit.names import imported_as, last_part
from advisor.edit.scopes import dict_display, dict_entry, mentions, parameter_names, scope_of, string_value

# What a call gives: an expression and the file it stands in, or None where the call leaves the parameter out.
Given = tuple[Draft, cst.BaseExpression | None]
_DEPTH = 4  # functions that pass their ``**kwargs`` on to the next, classes derived from one another


def callers(draft: Draft, function: cst.FunctionDef) -> list[cst.Call]:
    """The calls in this file that by their name are of `function`; for ``__init__``, of its class."""
    holder = draft.enclosing_class(function)
    name = function.name.value
    if name == "__init__" and holder is not None:
        name = holder.name.value
    calls = [call for call in draft.nodes(cst.Call) if _called(call) == name]
    return calls if holder is not None else [call for call in calls if isinstance(call.func, cst.Name)]


def calls_of(drafts: Drafts, draft: Draft, function: cst.FunctionDef) -> list[tuple[Draft, cst.Call]]:
    """The calls that by their name are of `function` in all of the script's modules.

    Those of ``__init__`` are of its class and of the classes derived from it, of which one may call it by ``super()``.
    """
    holder = draft.enclosing_class(function)
    if function.name.value != "__init__" or holder is None:
        return _calls_named(drafts, draft, function.name.value, holder is not None)
    return _made(drafts, draft, holder, _DEPTH)


def given(
    drafts: Drafts, draft: Draft, function: cst.FunctionDef, name: str, by_position: bool = True, depth: int = _DEPTH
) -> list[Given] | None:
    """What each call of the function gives its parameter `name`; None where that cannot be told, or nothing calls it.

    A function that passes its own ``**kwargs`` on gives what it is given.
    """
    names = parameter_names(draft, function) if by_position else []
    found: list[Given] = []
    for user, call in calls_of(drafts, draft, function) if depth else ():
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
            if any(string_value(node) == name for node in draft.nodes(cst.SimpleString, scope)):
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
    return all(isinstance(element, cst.DictElement) for element in display.elements)


def _calls_named(drafts: Drafts, draft: Draft, name: str, method: bool) -> list[tuple[Draft, cst.Call]]:
    found = []
    for user in with_word(drafts, draft, name):
        calls = [call for call in user.nodes(cst.Call) if _called(call) == name]
        if user is draft and not method:  # `net.train()` is not of a function `train`
            found += [(user, call) for call in calls if isinstance(call.func, cst.Name) or name[:1].isupper()]
        else:
            found += [(user, call) for call in calls if user is draft or _may_be(drafts, user, call, method)]
    return found


def _may_be(drafts: Drafts, user: Draft, call: cst.Call, method: bool) -> bool:
    """Whether a call in another file may be of the script's own function: by an import of it, or of an object."""
    first = (get_full_name_for_node(call.func) or "").partition(".")[0]
    module = imported_as(user, first)
    if not module:
        return method and isinstance(call.func, cst.Attribute)
    named = [each for each in (module, module.rpartition(".")[0]) if each.strip(".")]
    return any(beside(drafts, user, each) is not None for each in named)


def _made(drafts: Drafts, draft: Draft, holder: cst.ClassDef, depth: int) -> list[tuple[Draft, cst.Call]]:
    """The calls that make an object of the class by its own ``__init__``."""
    found = _calls_named(drafts, draft, holder.name.value, method=False)
    for user in with_word(drafts, draft, holder.name.value) if depth else ():
        for derived in user.nodes(cst.ClassDef):
            if derived is holder or all(last_part(base.value) != holder.name.value for base in derived.bases):
                continue
            own = own_method(derived, "__init__")
            if own is None:
                found += _made(drafts, user, derived, depth - 1)
                continue
            found += [(user, call) for call in user.nodes(cst.Call, own) if _is_super(call)]
    return found


def own_method(holder: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    """The method of that name that the class itself defines."""
    methods = [each for each in holder.body.body if isinstance(each, cst.FunctionDef)]
    return next((each for each in methods if each.name.value == name), None)


def _is_super(call: cst.Call) -> bool:
    """``super().__init__(…)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "__init__" or not isinstance(func.value, cst.Call):
        return False
    return get_full_name_for_node(func.value.func) == "super"


def _called(call: cst.Call) -> str:
    return (get_full_name_for_node(call.func) or "").rpartition(".")[2]
