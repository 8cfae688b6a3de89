"""Gives a parameter of a recorded call another value, at the place where the value is really written."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from advisor.edit.callers import kwargs_of, passed_on
from advisor.edit.calls import add_argument, argument, has_starred, unpacked
from advisor.edit.changes import is_changed, is_renamed
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import last_part
from advisor.edit.origins.displays import displays_of
from advisor.edit.origins.naming import mapping_names, names_of
from advisor.edit.origins.option_origin import Origin
from advisor.edit.origins.origin import UNKNOWN, origin_of
from advisor.edit.origins.settings import find, known_without
from advisor.edit.origins.sides import side_of
from advisor.edit.scopes import (
    dict_display,
    dict_entry,
    is_literal,
    literal_equals,
    mentions,
    string_value,
)

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
    alone: bool = False,
) -> str | None:
    """Have the call's parameter `name` get the value `code`.

    Returns :data:`EDITED` when the drafts now say so; the option (``"--workers"``) when the value comes from the
    command line and nothing was edited; None when no safe change is known. `recorded` is the value that the run
    saw: a literal that says something else is not what decides, and is left alone. With `flags`, an option that takes
    no value and sets the parameter True is returned with a mark: ``"--bf16!"``. With `alone`, nothing but this call may
    get another value: a constant that is read in any other place stays, and the call passes `code` instead; an option
    or a setting that is read in any other place is left alone.
    """
    passed = argument(call, name, parameters)
    try:
        if passed is None:
            return _add(drafts, draft, call, name, code, recorded, flags, alone)
        return _change(drafts, draft, passed.value, code, recorded, flags, alone) if not passed.star else None
    except TooManyFilesError:
        return None


def give_value(
    drafts: Drafts, draft: Draft, value: cst.BaseExpression, code: str, recorded: object, alone: bool = False
) -> str | None:
    """Have the expression `value` be the value `code`, where that is really written; as :func:`give` answers."""
    try:
        return _change(drafts, draft, value, code, recorded, False, alone)
    except TooManyFilesError:
        return None


def _add(
    drafts: Drafts,
    draft: Draft,
    call: cst.Call,
    name: str,
    code: str,
    recorded: object,
    flags: bool,
    alone: bool,
) -> str | None:
    if has_starred(call) or any(isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar for arg in call.args):
        return None
    for mapping in unpacked(call):
        if alone and _read_elsewhere(drafts, draft, mapping.value):
            return None
        if (outer := kwargs_of(draft, mapping.value)) is not None:
            return _by_callers(drafts, draft, outer, name, code, recorded, flags)
        if isinstance(mapping.value, cst.Attribute) and is_changed(drafts, draft, mapping.value.attr.value):
            return None
        if isinstance(mapping.value, cst.Name) and is_renamed(drafts, draft, mapping.value.value):
            return None
        names = mapping_names(drafts, draft, mapping.value)
        if names and change_setting(drafts, [*names, name], code, recorded):
            return EDITED
        if names and known_without(drafts.settings(), names, name):
            continue
        display = display_of(draft, mapping.value)
        if display is None or _copies(display, name):
            return _of_several(drafts, draft, mapping.value, name, code, recorded, flags, alone)
        entry, later = dict_entry(display, name), put_in_later(draft, mapping.value, name)
        if entry is None and later is None:
            return None
        entries = [each for each in (entry, *(later or ())) if each is not None]
        if later:  # of several branches, the one that was run
            entries = [each for each in entries if recorded is not UNKNOWN and literal_equals(each, recorded)]
        if entries or later:
            return _change(drafts, draft, entries[0], code, recorded, flags, alone) if len(entries) == 1 else None
        if _passes_on(display) or mentions(draft, name):
            # Something may put the key in later (kwargs.update(cuda_kwargs)): passing it twice would raise.
            return None
    add_argument(draft, call, name, code)
    return EDITED


def _by_callers(
    drafts: Drafts, draft: Draft, function: cst.FunctionDef, name: str, code: str, recorded: object, flags: bool
) -> str | None:
    """As :func:`give`, of what the one call of the function that passes it passes on by its ``**kwargs``."""
    passed = passed_on(drafts, draft, function, name) or []
    found = [(user, value) for user, value in passed if value is not None]
    if len(found) != 1 or recorded is UNKNOWN:
        return None
    return _change(drafts, *found[0], code, recorded, flags, False)


def _of_several(
    drafts: Drafts,
    draft: Draft,
    mapping: cst.BaseExpression,
    name: str,
    code: str,
    recorded: object,
    flags: bool,
    alone: bool,
) -> str | None:
    """As :func:`give`, of an entry of the mapping that was chosen from several: the one that says what the run saw."""
    found = []
    for of, display in displays_of(drafts, draft, mapping):
        entry = dict_entry(display, name)
        if entry is None and (_copies(display, name) or _passes_on(display)):
            return None
        if entry is not None and not is_literal(entry):
            return None
        if entry is not None and recorded is not UNKNOWN and literal_equals(entry, recorded):
            found.append((of, entry))
    if len(found) != 1 or (alone and any(_reads(each, name) for each in with_word(drafts, draft, name))):
        return None
    return _change(drafts, *found[0], code, recorded, flags, False)


def in_mapping(draft: Draft, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value that a mapping which the call unpacks has for `name`, where the mapping is written out."""
    for mapping in unpacked(call):
        display = display_of(draft, mapping.value)
        entry = dict_entry(display, name) if display is not None else None
        if entry is not None:
            return entry
    return None


def display_of(draft: Draft, mapping: cst.BaseExpression) -> cst.Dict | cst.Call | None:
    """The ``{…}`` or ``dict(…)`` that a mapping is, or that its name stands for."""
    return mapping if isinstance(mapping, cst.Dict) else dict_display(draft, mapping)


def put_in_later(draft: Draft, mapping: cst.BaseExpression, key: str) -> list[cst.BaseExpression] | None:
    """The values that a mapping of that name is given for `key` behind its display; None where that cannot be told.

    By ``update()``, ``|=``, or an item that is assigned.
    """
    found: list[cst.BaseExpression] = []
    for node in draft.nodes(cst.Name) if isinstance(mapping, cst.Name) else ():
        above = draft.parent(node)
        if node.value != cst.ensure_type(mapping, cst.Name).value:
            continue
        added: list[cst.BaseExpression] = []
        if isinstance(above, cst.Attribute) and above.value is node:
            call = draft.parent(above)
            if above.attr.value not in ("update", "setdefault") or not isinstance(call, cst.Call):
                continue
            if above.attr.value == "setdefault" or any(arg.star for arg in call.args):
                return None
            added = [arg.value for arg in call.args if arg.keyword is None]
            found += [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == key]
        elif isinstance(above, cst.AugAssign) and above.target is node:
            added = [above.value]
        elif isinstance(above, cst.Subscript) and isinstance(statement := draft.parent(above), cst.AssignTarget):
            index, assign = above.slice[0].slice, draft.parent(statement)
            name = string_value(index.value) if isinstance(index, cst.Index) else ""
            if not name or not isinstance(assign, cst.Assign):
                return None
            found += [assign.value] if name == key else []
        for each in added:
            display = display_of(draft, each)
            if display is None or _passes_on(display):
                return None
            found += [entry] if (entry := dict_entry(display, key)) is not None else []
    return found


def _copies(display: cst.Dict | cst.Call, name: str) -> bool:
    """Whether it is ``dict(x)``, which has the key from `x` if at all."""
    positional = isinstance(display, cst.Call) and any(arg.keyword is None and not arg.star for arg in display.args)
    return positional and dict_entry(display, name) is None


def _passes_on(display: cst.Dict | cst.Call) -> bool:
    if isinstance(display, cst.Call):
        return any(arg.star for arg in display.args)
    return any(isinstance(element, cst.StarredDictElement) for element in display.elements)


def _change(
    drafts: Drafts,
    draft: Draft,
    value: cst.BaseExpression,
    code: str,
    recorded: object,
    flags: bool,
    alone: bool,
) -> str | None:
    value = side_of(drafts, draft, value, recorded)
    origin = origin_of(drafts, draft, value, recorded)
    shared = alone and _read_elsewhere(drafts, draft, value, origin)
    if shared and (origin is None or origin.option):
        return None
    if origin is not None and origin.kind == "flag":
        return f"{origin.option}!" if flags and code == "True" else None
    if origin is not None and origin.option:
        return origin.option
    if origin is None or (recorded is not UNKNOWN and not origin.says(recorded)):
        names = names_of(drafts, draft, value)
        if shared or not names:
            return None
        if _put_in(draft, value, recorded):
            return None
        if change_setting(drafts, names, code, recorded):
            return EDITED
        return EDITED if _change_default(drafts, draft, value, names, code, recorded) else None
    if not drafts.sources.editable(origin.draft.source.path):
        return None
    if shared and origin.chosen:
        return None  # in other cases it is another value
    if shared:
        draft.replace(value, code)
    else:
        origin.draft.replace(origin.node, origin.written(code))
    return EDITED


def _put_in(draft: Draft, value: cst.BaseExpression, recorded: object) -> bool:
    """Whether the file gives an entry, ``cfg["size"] = 4``, what the run may have seen of it."""
    assigns = [each for each in draft.nodes(cst.Assign) if isinstance(value, cst.Subscript)]
    given = [each.value for each in assigns for to in each.targets if draft.code(to.target) == draft.code(value)]
    return any(not is_literal(each) or literal_equals(each, recorded) for each in given)


def _change_default(
    drafts: Drafts, draft: Draft, value: cst.BaseExpression, names: Sequence[str], code: str, recorded: object
) -> bool:
    """Whether it is the default of ``settings.get("key", default)``, of a file without that key: `code` now."""
    if not isinstance(value, cst.Call) or len(value.args) != 2 or recorded is UNKNOWN:
        return False
    default = value.args[1].value
    if not literal_equals(default, recorded) or not known_without(drafts.settings(), names[:-1], names[-1]):
        return False
    draft.replace(default, code)
    return True


def give_setting(drafts: Drafts, name: str, code: str, recorded: object) -> bool:
    """Whether the settings files say the value `recorded` at one key of this name alone, and now say `code` there."""
    found = [(file, entry) for file in drafts.settings() for entry in file.entries if entry.keys[-1] == name]
    if len(found) != 1 or type(found[0][1].value) is not type(recorded) or found[0][1].value != recorded:
        return False
    return found[0][0].give(found[0][1], code)


def _reads(draft: Draft, name: str, value: cst.BaseExpression | None = None) -> bool:
    """Whether the file reads anything of that name, beside giving it a value, and beside what `value` reads.

    What is read as an attribute no plain name stands for, and ``self.name`` no attribute of anything else; for an item
    no name does.
    """
    within = value if value is not None and draft.has(value) else None
    own = {*draft.nodes(cst.Name, within), *draft.nodes(cst.SimpleString, within)} if within is not None else set()
    names = [node for node in draft.nodes(cst.Name) if node.value == name and node not in own]
    if isinstance(value, cst.Attribute):
        attributes = [(node, above) for node in names if isinstance(above := draft.parent(node), cst.Attribute)]
        own_only = isinstance(value.value, cst.Name) and value.value.value == "self"
        names = [node for node, above in attributes if not own_only or draft.code(above.value) == "self"]
    elif isinstance(value, cst.Subscript):
        names = []
    strings = [node for node in draft.nodes(cst.SimpleString) if string_value(node) == name and node not in own]
    return any(not is_bound(draft, node) for node in names) or any(not _is_key(draft, each) for each in strings)


def _read_elsewhere(
    drafts: Drafts, draft: Draft, value: cst.BaseExpression, origin: Origin | None = None
) -> bool:
    """Whether anything else may read what `value` reads; always where the name is another one than at its origin."""
    if origin is not None and origin.node is value:
        return False
    name = last_name_of(value)
    if origin is not None and not origin.option and bound_to(origin.draft, origin.node) != name:
        return True
    if not name:
        return False
    return any(_reads(each, name, value) for each in with_word(drafts, draft, name))


def last_name_of(value: cst.BaseExpression) -> str:
    """The name, attribute, key, or argument that an expression reads its value by; "" where there is none."""
    if isinstance(value, cst.Name):
        return value.value
    if isinstance(value, cst.Attribute):
        return value.attr.value
    if isinstance(value, cst.Subscript) and isinstance(value.slice[0].slice, cst.Index):
        return string_value(value.slice[0].slice.value)
    if isinstance(value, cst.Call) and value.args:  # cfg.get("threads"), getattr(cfg, "threads"), int(cfg["threads"])
        named = [name for arg in value.args[:2] if (name := string_value(arg.value))]
        return named[0] if named else last_name_of(value.args[0].value)
    return ""


def bound_to(draft: Draft, node: cst.CSTNode) -> str:
    """The name that the expression is the value of, by assignment, default, keyword or key."""
    above = draft.parent(node)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        return last_name_of(above.targets[0].target)
    if isinstance(above, cst.AnnAssign):
        return last_name_of(above.target)
    if isinstance(above, cst.Param):
        return above.name.value
    if isinstance(above, cst.Arg) and above.keyword is not None:
        outer = draft.parent(above)
        if above.keyword.value == "default" and isinstance(outer, cst.Call) and last_part(outer.func) == "field":
            return bound_to(draft, outer)
        return above.keyword.value
    if isinstance(above, cst.DictElement):
        return string_value(above.key)
    return ""


def is_bound(draft: Draft, name: cst.Name) -> bool:
    """Whether the name is given a value there: a target, a parameter, a keyword."""
    node: cst.CSTNode = name
    above = draft.parent(node)
    if isinstance(above, cst.Attribute) and above.attr is name:
        node, above = above, draft.parent(above)
    if isinstance(above, (cst.AssignTarget, cst.AnnAssign)):
        return above.target is node
    if isinstance(above, cst.Param):
        return above.name is node
    # A keyword gives its parameter a value, and reads none.
    return isinstance(above, cst.Arg) and above.keyword is node


def _is_key(draft: Draft, string: cst.SimpleString) -> bool:
    above = draft.parent(string)
    return isinstance(above, cst.DictElement) and above.key is string


def change_setting(drafts: Drafts, names: Sequence[str], code: str, recorded: object) -> bool:
    """Whether a settings file that the script read says the value by these `names`, and now says the new one."""
    found = find(drafts.settings(), names, recorded) if recorded is not UNKNOWN else None
    return found is not None and found[0].give(found[1], code)
