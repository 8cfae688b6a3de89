"""What a name may stand for, in whichever of the script's modules that is written."""

from __future__ import annotations

import libcst as cst

from advisor.edit.callers import Given, given
from advisor.edit.changes import is_set
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside
from advisor.edit.names import imported_as, imports_anywhere
from advisor.edit.scopes import assignments, imports, is_bound_elsewhere, is_parameter, parameter, scope_of

_DEPTH = 8  # modules that have a name from one another: guards against circles


def held_by(drafts: Drafts, draft: Draft, node: cst.Name) -> list[Given] | None:
    """What a name is given: by assignment, by the calls of the function whose parameter it is, or where it comes from.

    None stands for what is no plain assignment; None instead of a list for what the text does not tell.
    """
    scope, within = scope_of(draft, node), True
    while True:
        # What a class has is no name of its methods.
        seen = within or not isinstance(scope, cst.ClassDef)
        bound = list(assignments(draft, node.value, scope, elements=True)) if seen else []
        if is_bound_elsewhere(draft, node.value) or (bound and is_parameter(scope, node.value)):
            return None
        if scope is draft.module:
            return held_by_module(drafts, draft, node.value)
        if imports(draft, node.value, scope):
            return None
        if bound:
            return [(draft, each) for each in bound]
        own = parameter(scope, node.value) if isinstance(scope, cst.FunctionDef) else None
        if isinstance(scope, cst.FunctionDef) and own is not None:
            passed = given(drafts, draft, scope, node.value)
            # What a call leaves out is the default.
            return [each if each[1] is not None else (draft, own.default) for each in passed] if passed else None
        if is_parameter(scope, node.value):
            return None
        scope, within = scope_of(draft, scope), False


def held_by_module(drafts: Drafts, draft: Draft, name: str, depth: int = _DEPTH) -> list[Given] | None:
    """What a module gives a name, or the module that it has it from: ``from config import SIZE``."""
    bound = list(assignments(draft, name, draft.module, elements=True))
    if not depth or is_bound_elsewhere(draft, name) or _is_one_of_several(drafts, draft, name):
        return None
    if bound:
        return [(draft, each) for each in bound]
    module, _, attribute = imported_as(draft, name).rpartition(".")
    other = beside(drafts, draft, module)
    if other is None or not attribute or is_set(drafts, other, attribute):
        return None
    return held_by_module(drafts, other, attribute, depth - 1)


def _is_one_of_several(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether a module may have a name from more than one place: two imports, or an import and an assignment."""
    everywhere = imports_anywhere(draft)
    times = sum(each == name for each, _ in everywhere)
    if times + any(True for _ in assignments(draft, name, draft.module)) > 1:
        return True
    stars = [beside(drafts, draft, module) for each, module in everywhere if each == "*"]
    return any(any(True for _ in assignments(of, name, of.module)) for of in stars if of is not None)


def is_local(draft: Draft, node: cst.Name) -> bool:
    """Whether a function around the name binds it."""
    scope = scope_of(draft, node)
    while scope is not draft.module:
        if is_parameter(scope, node.value) or imports(draft, node.value, scope):
            return True
        if any(True for _ in assignments(draft, node.value, scope)):
            return True
        scope = scope_of(draft, scope)
    return False
