"""What a name may stand for, in whichever of the script's modules that is written."""

from __future__ import annotations

import libcst as cst

from advisor.edit.callers import Given, given
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside
from advisor.edit.names import imported_as, imports_anywhere
from advisor.edit.scopes import assignments, is_bound_elsewhere, is_parameter, parameter, scope_of


def held_by(drafts: Drafts, draft: Draft, node: cst.Name) -> list[Given] | None:
    """What a name is given: by assignment, by the calls of the function whose parameter it is, or where it comes from.

    None stands for what is no plain assignment; None instead of a list for what the text does not tell.
    """
    scope = scope_of(draft, node)
    while True:
        bound = list(assignments(draft, node.value, scope))
        if is_bound_elsewhere(draft, node.value) or (bound and is_parameter(scope, node.value)):
            return None
        if bound:
            return [(draft, each) for each in bound]
        if scope is draft.module:
            return _imported(drafts, draft, node.value)
        if isinstance(scope, cst.FunctionDef) and parameter(scope, node.value) is not None:
            return given(drafts, draft, scope, node.value)
        if is_parameter(scope, node.value):
            return None
        scope = scope_of(draft, scope)


def _imported(drafts: Drafts, draft: Draft, name: str) -> list[Given] | None:
    """What the module that a name is imported from gives it."""
    module, _, attribute = imported_as(draft, name).rpartition(".")
    other = beside(drafts, draft, module)
    once = sum(each == name for each, _ in imports_anywhere(draft)) == 1
    if other is None or not once or is_bound_elsewhere(other, attribute):
        return None
    return [(other, each) for each in assignments(other, attribute, other.module)] or None
