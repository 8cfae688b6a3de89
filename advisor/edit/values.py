"""Gives a parameter of a recorded call another value, at the place where the value is really written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import libcst as cst

from advisor.edit.calls import add_argument, argument, has_starred, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.naming import names_of
from advisor.edit.origin import Origin, dict_display, dict_entry, literal_equals, mentions, origin_of
from advisor.edit.settings import find, known_without

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
        names = names_of(drafts, draft, mapping.value)
        if change_setting(drafts, [*names, name], code, recorded):
            return EDITED
        if names and known_without(drafts.settings(), names, name):
            continue
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
    if origin is not None and origin.kind == "flag":
        return f"{origin.option}!" if flags and code == "True" else None
    if origin is not None and origin.option:
        return origin.option
    if origin is None or (recorded is not UNKNOWN and not _agrees(origin, recorded)):
        return EDITED if change_setting(drafts, names_of(drafts, draft, value), code, recorded) else None
    if not drafts.sources.editable(origin.draft.source.path):
        return None
    origin.draft.replace(origin.node, code)
    return EDITED


def change_setting(drafts: Drafts, names: Sequence[str], code: str, recorded: object) -> bool:
    """Whether a settings file that the script read says the value by these `names`, and now says the new one."""
    found = find(drafts.settings(), names, recorded) if recorded is not UNKNOWN else None
    return found is not None and found[0].give(found[1], code)


def _agrees(origin: Origin, recorded: object) -> bool:
    return literal_equals(origin.node, recorded)
