"""A property that computes the same each time it is read is computed once: ``functools.cached_property``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.loading.only_read import may_change, only_read
from advisor.edit.names import add_import, full_name, last_part
from advisor.edit.scopes import is_target, variables

# Bases whose objects keep nothing more.
_NO_ROOM = frozenset(("NamedTuple", "Enum", "IntEnum", "Protocol", "Structure"))
_HANDS_ON = ("torch.from_numpy", "torch.as_tensor", "torch.tensor")


def keep_property(draft: Draft, line: int, readers: Iterable[Draft], copied: bool) -> str:
    """Have the property at `line` be computed once for each object; why not, as a clause, or "".

    That it gives the same each time is for the caller to know. `readers` are the files that may read it; `copied`: what
    a dataset's ``__getitem__`` returns is copied into batches.
    """
    function = next((each for each in draft.nodes(cst.FunctionDef) if draft.line(each) == line), None)
    holder = draft.enclosing_class(function) if function is not None else None
    if function is None or holder is None or function not in holder.body.body:
        return "its source is not where it was"
    decorators = [each.decorator for each in function.decorators]
    if len(decorators) != 1 or full_name(draft, decorators[0]) != "property":
        return "it is a method, whose callers would have to read what is kept"
    name = function.name.value
    if len([each for each in holder.body.body if m.matches(each, m.FunctionDef(name=m.Name(name)))]) > 1:
        return "it may be given a value"
    bases = {last_part(each.value) for each in holder.bases}
    slots = any("slots" in draft.code(each) for each in (*holder.decorators, *holder.keywords))
    if bases & _NO_ROOM or slots or variables(draft, "__slots__", holder):
        return "its object has no place for it"
    files = list(dict.fromkeys((draft, *readers)))
    read = {each.attr.value for each in draft.nodes(cst.Attribute, holder)}
    for file in files:
        for each in file.nodes(cst.Attribute):
            if each.attr.value in read and _named(file.function(each)) != "__init__" and _is_changed(file, each):
                return f"{file.code(each)} may be given another value"
            if each.attr.value == name and not _is_read(file, each, copied):
                return "what it gives may be changed where it is read"
    add_import(draft, "import functools")
    draft.replace(decorators[0], "functools.cached_property")
    return ""


def _named(function: cst.FunctionDef | None) -> str:
    return function.name.value if function is not None else ""


def _is_changed(draft: Draft, attribute: cst.Attribute) -> bool:
    """Whether it is given something there, also in a part of it, or asked to change itself."""
    node: cst.CSTNode = attribute
    while isinstance(above := draft.parent(node), (cst.Subscript, cst.Attribute)) and above.value is node:
        node = above
    if is_target(draft, node) or isinstance(above, cst.Del):
        return True
    called = isinstance(above, cst.Call) and above.func is node and isinstance(node, cst.Attribute)
    return called and may_change(node.attr.value, above)  # type: ignore[attr-defined, arg-type]


def _is_read(draft: Draft, node: cst.CSTNode, copied: bool, known: frozenset[str] = frozenset()) -> bool:
    """Whether what the expression gives is only read, also by the names (other than those `known`) that it is given."""
    if only_read(draft, node) or (copied and _handed_out(draft, node)):
        return True
    above = draft.parent(node)
    if isinstance(above, cst.Subscript) and above.value is node:
        return _is_read(draft, above, copied, known)
    target, function = _target(draft, node), draft.function(node)
    if target is None or function is None:
        return False
    if target.value in known:
        return True
    names = [each for each in variables(draft, target.value, function) if not _is_bound(draft, each)]
    return all(_is_read(draft, each, copied, known | {target.value}) for each in names)


def _target(draft: Draft, node: cst.CSTNode) -> cst.Name | None:
    """The name that ``name = node`` gives it, or ``name, other = node, another``."""
    above, place = draft.parent(node), None
    if isinstance(above, cst.Element) and isinstance(holder := draft.parent(above), cst.Tuple):
        place, above, node = holder.elements.index(above), draft.parent(holder), holder
    if not isinstance(above, cst.Assign) or above.value is not node or len(above.targets) != 1:
        return None
    target: cst.BaseExpression = above.targets[0].target
    if place is not None:
        if not isinstance(target, cst.Tuple) or not all(type(each) is cst.Element for each in target.elements):
            return None
        target = target.elements[place].value
    return target if isinstance(target, cst.Name) else None


def _is_bound(draft: Draft, name: cst.CSTNode) -> bool:
    """Whether a plain assignment gives the name something there."""
    above = draft.parent(name)
    if isinstance(above, cst.Element) and isinstance(holder := draft.parent(above), cst.Tuple):
        above = draft.parent(holder)
    return isinstance(above, cst.AssignTarget)


def _handed_out(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether it is what ``__getitem__`` returns, or one of several such, as it is or as a tensor."""
    above = draft.parent(node)
    if isinstance(above, cst.Return):
        return _named(draft.function(above)) == "__getitem__"
    if isinstance(above, (cst.Element, cst.Tuple, cst.List, cst.DictElement, cst.Dict)):
        return _handed_out(draft, above)
    if isinstance(above, cst.Subscript):
        return above.value is node and _handed_out(draft, above)
    call = draft.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and full_name(draft, call.func) in _HANDS_ON and _handed_out(draft, call)
