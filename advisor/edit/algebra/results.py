"""What a function returns beside its result, and whether anybody in the file looks at it."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence

import libcst as cst

from advisor.edit.draft import Draft

_MOST_FILES = 200


def unread_results(
    draft: Draft, function: cst.FunctionDef, names: Sequence[cst.Name]
) -> tuple[tuple[cst.Name, ...], str]:
    """`names` again where each is one of the values that the function returns, and every call in the file drops it.

    And the attribute ("self.attn") in which a call keeps it, though nothing in the file reads that; "" where none does.
    Empty where a name is used otherwise, where a call cannot be followed, or where there is none.
    """
    returns = draft.nodes(cst.Return, function.body)
    places = [place for name in names if (place := _place(draft, name)) is not None]
    if not names or len(returns) != 1 or len(places) != len(names):
        return (), ""
    values, calls, stored = cst.ensure_type(returns[0].value, cst.Tuple), list(_calls(draft, function)), ""
    if not calls:
        return (), ""
    for call in calls:
        for place in places:
            kept = keeps(draft, call, place, len(values.elements)) if call is not None else None
            if kept is None:
                return (), ""
            stored = stored or kept
    return tuple(names), stored


def _place(draft: Draft, name: cst.Name) -> int | None:
    """Which value of ``return a, b`` a name is; None where it is used otherwise."""
    element = draft.parent(name)
    values = draft.parent(element) if isinstance(element, cst.Element) else None
    if isinstance(values, cst.Tuple) and isinstance(draft.parent(values), cst.Return):
        return next(place for place, each in enumerate(values.elements) if each is element)
    return None


def _calls(draft: Draft, function: cst.FunctionDef) -> Iterator[cst.Call | None]:
    """The calls of a function, or of the objects of a module's class whose ``forward`` it is; None: not to be told.

    Whatever goes by the same name, here or in a file beside this one, must be such a call.
    """
    holder = draft.enclosing_class(function)
    if holder is not None and function.name.value != "forward":
        targets = {f"self.{function.name.value}"}
    else:
        named = holder.name if holder is not None else function.name
        uses = [
            each
            for each in draft.nodes(cst.Name)
            if each.value == named.value and each is not named and not _of_super(draft, each)
        ]
        makes = [parent for each in uses if isinstance(parent := draft.parent(each), cst.Call) and parent.func is each]
        if len(makes) != len(uses) or _known_beside(draft, named.value):
            yield None  # passed on, subclassed, called by another name, or from elsewhere
            return
        if holder is None:
            yield from makes
            return
        targets = set()
        for make in makes:
            parent = draft.parent(make)
            if isinstance(parent, cst.Call) and parent.func is make:  # Attention(…)(q, k, v)
                yield parent
            elif isinstance(parent, cst.Assign) and len(parent.targets) == 1:
                targets.add(draft.code(parent.targets[0].target))
            else:
                yield None
    for target in targets:
        last = target.rpartition(".")[2]
        if _known_beside(draft, last):
            yield None
        nodes: list[cst.Name | cst.Attribute] = [*draft.nodes(cst.Name), *draft.nodes(cst.Attribute)]
        for node in nodes:
            name = node.value if isinstance(node, cst.Name) else node.attr.value
            parent = draft.parent(node)
            if name != last or node is function.name or (isinstance(parent, cst.Attribute) and parent.attr is node):
                continue
            if isinstance(parent, cst.Call) and parent.func is node and draft.code(node) == target:
                yield parent
            elif not _is_target(draft, node):
                yield None


def _known_beside(draft: Draft, name: str) -> bool:
    """Whether another Python file in the folder has that word."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    own = os.path.abspath(draft.source.path)
    for path in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(own)), "*.py")))[:_MOST_FILES]:
        if path == own:
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                if word.search(file.read()):
                    return True
        except OSError:
            return True
    return False


def _of_super(draft: Draft, name: cst.Name) -> bool:
    """Whether a name is that of the class in ``super(Attention, self)``."""
    argument = draft.parent(name)
    call = draft.parent(argument) if isinstance(argument, cst.Arg) else None
    return isinstance(call, cst.Call) and draft.code(call.func) == "super"


def keeps(draft: Draft, call: cst.Call, place: int, count: int) -> str | None:
    """The attribute that keeps that one of a call's `count` values, "" where it is dropped; None where it may be used.

    `place` counts from 0. Dropped is what is never read: ``x, _ = f()``, ``f()[0]``.
    """
    parent = draft.parent(call)
    if isinstance(parent, cst.Subscript):
        wanted = draft.code(parent)[len(draft.code(call)) :].strip("[] ")
        return "" if wanted.isdigit() and int(wanted) < count and int(wanted) != place else None
    target = parent.targets[0].target if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None
    if not isinstance(target, cst.Tuple) or len(target.elements) != count:
        return None
    kept = target.elements[place].value
    name = draft.code(kept)
    function = draft.function(call)
    if isinstance(kept, cst.Name):
        read = [each for each in draft.nodes(cst.Name, function) if each.value == name and each is not kept]
        return "" if all(_is_target(draft, each) for each in read) else None
    if isinstance(kept, cst.Attribute) and name.startswith("self."):
        read_too = [each for each in draft.nodes(cst.Attribute) if each.attr.value == kept.attr.value]
        return name if all(_is_target(draft, each) for each in read_too) else None
    return None


def _is_target(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a name is bound here, as the target of an assignment or one of several, and not read."""
    parent = draft.parent(node)
    while isinstance(parent, (cst.Element, cst.Tuple, cst.StarredElement)):
        node, parent = parent, draft.parent(parent)
    return isinstance(parent, cst.AssignTarget)
