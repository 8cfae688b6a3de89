"""Gives a parameter of a recorded call another value, at the place where the value is really written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import libcst as cst

from advisor.edit.calls import add_argument, argument, has_starred, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.origin import Origin, dict_display, dict_entry, literal_equals, mentions, origin_of

UNKNOWN: Final = object()
EDITED = ""


def give(
    drafts: Drafts,
    draft: Draft,
    call: cst.Call,
    name: str,
    code: str,
    parameters: Sequence[str] = (),
    recorded: object = UNKNOWN,
    flags: bool = False,
) -> str | None:
    """Have the call's parameter `name` get the value `code`.

    Returns :data:`EDITED` when the drafts now say so; the option (``"--workers"``) when the value comes from the
    command line and nothing was edited; None when no safe change is known. `recorded` is the value that the run
    saw: a literal that says something else is not what decides, and is left alone. With `flags`, an option that takes
    no value and sets the parameter True is returned with a mark: ``"--bf16!"``.
    """
    passed = argument(call, name, parameters)
    if passed is None:
        return _add(drafts, draft, call, name, code, recorded, flags)
    if passed.star:
        return None
    return _change(drafts, draft, passed.value, code, recorded, flags)


def _add(
    drafts: Drafts, draft: Draft, call: cst.Call, name: str, code: str, recorded: object, flags: bool
) -> str | None:
    if has_starred(call) or any(isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar for arg in call.args):
        return None
    for mapping in unpacked(call):
        display = mapping.value if isinstance(mapping.value, cst.Dict) else dict_display(draft, mapping.value)
        if display is None:
            return None
        entry = dict_entry(display, name)
        if entry is not None:
            return _change(drafts, draft, entry, code, recorded, flags)
        if _passes_on(display) or mentions(draft, name):
            # Something may put the key in later (kwargs.update(cuda_kwargs)): passing it twice would raise.
            return None
    add_argument(draft, call, name, code)
    return EDITED


def _passes_on(display: cst.Dict | cst.Call) -> bool:
    if isinstance(display, cst.Call):
        return any(arg.star for arg in display.args)
    return any(isinstance(element, cst.StarredDictElement) for element in display.elements)


def _change(
    drafts: Drafts, draft: Draft, value: cst.BaseExpression, code: str, recorded: object, flags: bool
) -> str | None:
    origin = origin_of(drafts, draft, value)
    if origin is None:
        return None
    if origin.kind == "flag":
        return f"{origin.option}!" if flags and code == "True" else None
    if origin.option:
        return origin.option
    if recorded is not UNKNOWN and not _agrees(origin, recorded):
        return None
    if not drafts.sources.editable(origin.draft.source.path):
        return None
    origin.draft.replace(origin.node, code)
    return EDITED


def _agrees(origin: Origin, recorded: object) -> bool:
    return literal_equals(origin.node, recorded)
