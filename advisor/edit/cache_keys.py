"""A cache is asked for the key that it is filled under: ``if name not in basis`` for ``if fmax not in basis``."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.scopes import assigned_once, is_parameter, is_target, scope_of, variables


def ask_for_the_key(draft: Draft, line: int, cache: str) -> str:
    """Have the ``if key not in cache`` at `line` ask for the key that its body fills; why not, as a clause, or ""."""
    guard = next((each for each in draft.nodes(cst.If) if draft.line(each) == line), None)
    if guard is None or guard.orelse is not None or not isinstance(guard.body, cst.IndentedBlock):
        return "its source is not where it was"
    compared = draft.nodes(cst.Comparison, guard.test)
    filled = [each for each in draft.nodes(cst.Subscript, guard.body) if is_target(draft, each)]
    own = [each for each in filled if draft.code(each.value) == cache]
    index = own[0].slice[0].slice if len(own) == 1 and len(own[0].slice) == 1 else None
    if len(compared) != 1 or not isinstance(index, cst.Index):
        return "the key that it is filled under is not one expression"
    if draft.nodes(cst.Await, index) or any(is_target(draft, each) for each in draft.nodes(cst.Attribute, guard.body)):
        return "more is done there than to fill it"
    for name in _names(draft, index.value):
        if not _known_before(draft, name, guard):
            return f"{name} is not known yet where the cache is asked"
    # What else is filled there has to be there whenever the cache has its key.
    known = _made_of(draft, index.value, guard)
    for each in filled:
        if each not in own and not {draft.code(part).strip(", ") for part in each.slice} <= known:
            return "other things are filled there, which may lack what the cache has"
    scope, last = scope_of(draft, guard), draft.position(guard.body).end.line
    for made in {each.value for each in draft.nodes(cst.Name, guard.body) if is_target(draft, each)}:
        if any(not line <= draft.line(each) <= last for each in variables(draft, made, scope)):
            return f"{made}, which is made there, is read behind it"
    draft.replace(compared[0].left, draft.code(index.value))
    return ""


def _names(draft: Draft, node: cst.CSTNode) -> set[str]:
    """The variables that it reads."""
    return {each.value for each in draft.nodes(cst.Name, node) if each in variables(draft, each.value, node)}


def _known_before(draft: Draft, name: str, guard: cst.If) -> bool:
    """Whether a name of the guarded code means the same at its test: a parameter, bound before it, or not in here."""
    scope = scope_of(draft, guard)
    bound = [each for each in variables(draft, name, scope) if is_target(draft, each)]
    if any(draft.line(each) >= draft.line(guard) for each in bound):
        return False
    around = [guard, *draft.ancestors(guard)]
    return not bound or is_parameter(scope, name) or any(_beside(draft, each, around) for each in bound)


def _beside(draft: Draft, target: cst.CSTNode, around: list[cst.CSTNode]) -> bool:
    """Whether the line that binds it always runs before: it stands in a block that is around the guard."""
    statement = draft.statement(target)
    return statement is not None and draft.parent(statement) in around


def _made_of(draft: Draft, key: cst.BaseExpression, guard: cst.If) -> set[str]:
    """All that a key is made of, as it is written: its parts, and those of what its names stand for."""
    scope, found, todo = scope_of(draft, guard), set[str](), [key]
    while todo:
        for part in draft.nodes(cst.BaseExpression, todo.pop()):  # type: ignore[type-abstract]
            above, code = draft.parent(part), draft.code(part)
            if code in found or (isinstance(above, cst.Attribute) and above.attr is part):
                continue
            found.add(code)
            value = assigned_once(draft, code, scope) if isinstance(part, cst.Name) else None
            if value is not None:
                todo.append(value)
    return found
