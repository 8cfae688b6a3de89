"""What a command-line option takes: how it says a value, by the type and the choices that are declared for it."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Collection

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, with_neighbours, with_word
from advisor.edit.names import last_part
from advisor.edit.scopes import assigned_once, parse_number, string_value

# Calls that declare an option: argparse's and optparse's, click's, typer's.
_DECLARE = ("add_argument", "add_option", "option", "Option")
# click's names for types of its own, and the type that it takes from a default.
_CLICK_TYPES = {"INT": "int", "IntRange": "int", "FLOAT": "float", "FloatRange": "float", "BOOL": "bool"}
_CLICK_TYPES |= {"STRING": "str", "Choice": "str", "Integer": "int", "Float": "float", "SimpleString": "str"}
_TEXT = ("", "str")  # argparse leaves the words of an option without a type as they are


def option_value(drafts: Drafts, draft: Draft, option: str, code: str) -> str | None:
    """What the command line says behind `option` for its value to be the one that the literal `code` is.

    The option is declared in `draft`, in a file beside it that it imports from, or in another one of the script's. None
    where its type or choices do not take the value, or cannot be told: the parser would end the script, or hand it
    something else.
    """
    try:
        value = ast.literal_eval(code)
    except (ValueError, SyntaxError):
        return None
    if not isinstance(value, (bool, int, float, str)):
        return None
    found = {_word(each, call, value) for each, call in _declarations(drafts, draft, option)}
    return found.pop() if len(found) == 1 else None


def _declarations(drafts: Drafts, draft: Draft, option: str) -> list[tuple[Draft, cst.Call]]:
    """The calls that declare the option, in the nearest file that has any."""
    todo, seen = [draft], set[str]()
    while todo:
        each = todo.pop(0)
        if each.source.path in seen:
            continue
        seen.add(each.source.path)
        if found := _declared_in(each, option):
            return found
        todo += with_neighbours(drafts, each)
    # A file that is imported does not know of the one that has the parser.
    with contextlib.suppress(TooManyFilesError):
        others = [each for each in with_word(drafts, draft, option.lstrip("-")) if each.source.path not in seen]
        names = drafts.sources.modules
        others.sort(key=lambda each: names.get(os.path.abspath(each.source.path)) != "__main__")  # the script's first
        return next(filter(None, (_declared_in(each, option) for each in others)), [])
    return []


def _declared_in(draft: Draft, option: str) -> list[tuple[Draft, cst.Call]]:
    calls = [call for call in draft.nodes(cst.Call) if last_part(call.func) in _DECLARE]
    return [(draft, call) for call in calls if any(string_value(arg.value) == option for arg in call.args)]


def _word(draft: Draft, call: cst.Call, value: bool | int | float | str) -> str | None:
    """The value as the option that the call declares takes it, or None."""
    of_click = last_part(call.func) == "option"
    declared = argument(call, "type")
    kind = _type(draft, declared.value if declared is not None else None, call, of_click)
    if not _fits(kind, value, of_click):
        return None
    word = str(int(value)) if isinstance(value, bool) and kind in ("int", "float") else str(value)
    choices = argument(call, "choices")
    if declared is not None and isinstance(declared.value, cst.Call):  # click.Choice([…]), click.IntRange(1, 64)
        made = declared.value
        largest = argument(made, "max", ("min", "max"))
        if last_part(made.func) in ("IntRange", "FloatRange") and largest is not None:
            bound = parse_number(largest.value)
            return word if bound is not None and not isinstance(value, str) and value <= bound else None
        choices = argument(made, "choices", ("choices",)) if last_part(made.func) == "Choice" else choices
    if choices is None:
        return word
    known = _listed(draft, choices.value)
    return word if word in known or (kind not in _TEXT and value in known) else None


def _type(draft: Draft, declared: cst.BaseExpression | None, call: cst.Call, of_click: bool) -> str:
    """The name of the option's type: int, float, bool, str; "" for none; else that of a function of the script's."""
    if last_part(call.func) == "Option":
        return "unknown"  # typer's is an annotation
    if declared is None and of_click:
        default = argument(call, "default")
        if default is None:
            return "str"
        is_bool = isinstance(default.value, cst.Name) and default.value.value in ("True", "False")
        return "bool" if is_bool else _CLICK_TYPES.get(type(default.value).__name__, "unknown")
    if declared is None:
        return ""
    name = last_part(declared.func if isinstance(declared, cst.Call) else declared) or draft.code(declared).strip("\"'")
    return _CLICK_TYPES.get(name, name) if of_click else name


def _fits(kind: str, value: bool | int | float | str, of_click: bool) -> bool:
    if kind == "int":
        return isinstance(value, int)
    if kind == "float":  # a whole number would no longer be one
        return isinstance(value, (bool, float))
    if kind == "bool":  # argparse's bool("False") is True
        return value is True or (of_click and value is False)
    # Any text counts as true; a number would arrive as text. A function of the script's own takes what it takes.
    return kind not in _TEXT or isinstance(value, str) or value is True


def _listed(draft: Draft, node: cst.BaseExpression) -> Collection[object]:
    """The choices that are written out, there or in a constant; none where that cannot be read."""
    constant = assigned_once(draft, node.value, draft.module) if isinstance(node, cst.Name) else None
    try:
        known = ast.literal_eval(draft.code(constant or node))
    except (ValueError, SyntaxError):
        return ()
    return known if isinstance(known, (list, tuple, set, frozenset, dict)) else ()
