"""What a script copies to the GPU, by its text: a tensor or something else, and whether it is written to again.

A copy that is not waited for reads its source later: what is written there meanwhile is what arrives.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.dataflow import loops
from advisor.edit.draft import Draft, Drafts
from advisor.edit.in_place import places_written, written_in_place
from advisor.edit.modules import beside
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.preceding import bindings_before
from advisor.edit.scopes import assignments, is_parameter, parameter_names, string_value
from advisor.edit.sums import elements

_FOLLOWED = 8  # names, and callers, that are followed from one to the next
# Whose functions give tensors, and whose objects do when they are called.
_OF_TENSORS = (
    *("torch.", "torchaudio.", "einops."),
    *("torchvision.io.", "torchvision.transforms.", "torchvision.datasets."),
)
# Methods whose result is the same memory, or may be.
_VIEWS = frozenset((
    *("view", "reshape", "narrow", "select", "squeeze", "unsqueeze", "flatten"),
    *("permute", "transpose", "t", "expand", "detach", "contiguous"),
))  # fmt: skip


def made_by_others(drafts: Drafts, draft: Draft, node: cst.BaseExpression, depth: int = _FOLLOWED) -> bool:
    """Whether an object is what others' code returns, or its item by number: neither torch's nor the script's own."""
    if not depth:
        return False
    if isinstance(node, cst.Name):
        return any(made_by_others(drafts, draft, each, depth - 1) for each in _given(draft, node))
    if isinstance(node, cst.Subscript):
        key = node.slice[0].slice
        by_name = isinstance(key, cst.Index) and bool(string_value(key.value))
        return not by_name and made_by_others(drafts, draft, node.value, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    function = node.func
    if not isinstance(function, (cst.Name, cst.Attribute)):
        return made_by_others(drafts, draft, function, depth - 1)
    if imported := imported_as(draft, (get_full_name_for_node(function) or "").partition(".")[0]):
        own = imported.startswith(".") or any(
            beside(drafts, draft, each) is not None for each in (imported, imported.rpartition(".")[0])
        )
        return not own and not full_name(draft, function).startswith(_OF_TENSORS)
    definitions: list[cst.FunctionDef | cst.ClassDef] = [*draft.nodes(cst.FunctionDef), *draft.nodes(cst.ClassDef)]
    if last_part(function) in {each.name.value for each in definitions}:
        return False
    if isinstance(function, cst.Attribute) and get_full_name_for_node(function.value) != "self":
        return made_by_others(drafts, draft, function.value, depth - 1)  # a tensor's method, a dictionary's
    if isinstance(function, cst.Name) and hasattr(builtins, function.value):
        return False
    called = _given(draft, function)  # an object: a layer, a transform
    return not called or any(
        not isinstance(each, cst.Call) or made_by_others(drafts, draft, each, depth - 1) for each in called
    )


def _given(draft: Draft, node: cst.Name | cst.Attribute) -> list[cst.BaseExpression]:
    """What a name is given last in front of where it is read, or an attribute anywhere; nothing for a loop's own."""
    if isinstance(node, cst.Attribute):
        return list(_values(draft, node, draft.module))
    around = set(draft.ancestors(node))
    for statement in bindings_before(draft, node):
        if statement in around:
            return []
        if values := list(_values(draft, node, statement)):
            return values
    function = draft.function(node)
    if function is None or is_parameter(function, node.value):
        return []
    return [each for each in assignments(draft, node.value, draft.module) if each is not None][-1:]


def _values(draft: Draft, target: cst.BaseExpression, within: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """What assignments give `target`; where they take several things apart, all that they take apart."""
    for statement in draft.nodes(cst.Assign, within):
        for each in (one.target for one in statement.targets):
            pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(each, statement.value)]
            if isinstance(each, cst.Tuple) and isinstance(statement.value, cst.Tuple):
                pairs = [(a.value, b.value) for a, b in zip(each.elements, statement.value.elements, strict=False)]
            yield from (value for to, value in pairs if any(e.deep_equals(target) for e in elements(to)))


# Whether it is written to again ---------------------------------------------------------------------------------------


def overwritten(draft: Draft, place: cst.CSTNode, copied: cst.BaseExpression, depth: int = _FOLLOWED) -> bool:
    """Whether what is copied at `place` is one tensor, made before, that the script writes to for each copy.

    A local one in the loop around `place`, or where a caller does; an attribute, or one from outside the function,
    anywhere in the file.
    """
    copied = _memory_of(copied)
    loop, function = draft.loop(place), draft.function(place)
    if loop is None and function is None:
        return False
    if _written_after(draft, place, copied, loop or function):
        return True
    if not isinstance(copied, (cst.Name, cst.Attribute)):
        return False
    first = draft.code(copied).partition(".")[0]
    handed = function is not None and first != "self" and is_parameter(function, first)
    # A parameter is another tensor only where it is made one in front of the copy: not by ``x = x.to(device)``.
    until = draft.line(place) if handed and loop is None else None
    if _made_in(draft, loop or function, copied, until):
        return False
    local = handed or (function is not None and any(True for _ in assignments(draft, first, function)))
    if loop is not None or not local:
        written = written_in_place(draft, loop if local else None)
        if any(_is_it(draft, each, copied, local) and _each_time(draft, each, place) for each in written):
            return True
    if not handed or not depth or function is None or not isinstance(copied, cst.Name):
        return False
    names = parameter_names(draft, function)
    given = [(call, argument(call, first, names)) for call in callers(draft, function)]
    return any(arg is not None and overwritten(draft, call, arg.value, depth - 1) for call, arg in given)


def _written_after(draft: Draft, place: cst.CSTNode, copied: cst.BaseExpression, within: cst.CSTNode | None) -> bool:
    """Whether the same round, or the rest of the function, writes to what was copied, under the name that it had."""
    name, line = draft.code(copied), draft.line(draft.statement(place) or place)
    targets = [each.target for each in draft.nodes(cst.AssignTarget, within) if draft.line(each) >= line]
    given = [each for target in targets for each in elements(target)]
    again = min((draft.line(each) for each in given if draft.code(each) == name), default=None)  # x = x.to(device)
    for each in places_written(draft, within):
        above = draft.parent(each)
        if isinstance(above, cst.Attribute) and above.attr.value == "requires_grad_":
            continue
        written = each.value if isinstance(each, cst.Subscript) and draft.code(each) != name else each
        if draft.code(written) == name and draft.line(each) > line and (again is None or draft.line(each) < again):
            return True
    return False


def _memory_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """The tensor whose memory an expression is, or may be, a view of."""
    while True:
        if isinstance(node, cst.Subscript) and all(isinstance(each.slice, cst.Slice) for each in node.slice):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and last_part(node.func) in _VIEWS:
            node = node.func.value
        else:
            return node


def _made_in(draft: Draft, around: cst.CSTNode | None, tensor: cst.BaseExpression, until: int | None = None) -> bool:
    """Whether a loop or a function makes another tensor each time, and not only where there is none yet.

    With `until` above that line.
    """
    name = draft.code(tensor)
    targets = [
        each.target
        for each in draft.nodes(cst.AssignTarget, around)
        if not any(isinstance(above, cst.If) and name in draft.code(above.test) for above in draft.ancestors(each))
    ]
    targets += [each.target for each in loops(draft, around)]
    made = [each for target in targets for each in elements(target) if until is None or draft.line(each) < until]
    return any(draft.code(each) in (name, name.partition(".")[0]) for each in made)


def _is_it(draft: Draft, written: cst.BaseExpression, copied: cst.Name | cst.Attribute, local: bool) -> bool:
    """Whether what is written to is what is copied, by its name; an attribute of that name is, whoever's it is."""
    if isinstance(copied, cst.Attribute) and not local:
        return isinstance(written, cst.Attribute) and written.attr.value == copied.attr.value
    name, function = draft.code(copied), draft.function(written)
    if draft.code(written) != name:
        return False
    return local or function is None or function is draft.function(copied) or not _binds(draft, function, name)


def _binds(draft: Draft, function: cst.FunctionDef, name: str) -> bool:
    return is_parameter(function, name) or any(True for _ in assignments(draft, name, function))


def _each_time(draft: Draft, written: cst.BaseExpression, place: cst.CSTNode) -> bool:
    """Whether a place that writes to a tensor is come by between two copies, and has not made another one before."""
    around = [each for each in draft.ancestors(written) if isinstance(each, (cst.For, cst.While, cst.FunctionDef))]
    shared = set(around) & set(draft.ancestors(place))
    stored = any(isinstance(each, cst.AssignTarget) for each in draft.ancestors(written))
    if stored and draft.statement(written) is draft.statement(place):
        return False  # x[i] = x[i].to(device)
    if not shared and not (draft.function(written) or (around and draft.function(place))):
        return False  # once, before the steps or after them
    return not any(_made_in(draft, each, written) for each in around if each not in shared)
