"""An origin: where a value is written, or the command-line option that gives it, as argparse and click declare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import imported_as
from advisor.edit.scopes import is_literal, literal_equals, string_value

Kind = Literal["literal", "constant", "default", "option", "flag", "dict"]


@dataclass(frozen=True)
class Origin:
    """The expression in `draft` that gives the value, or the long command-line ``option`` that does.

    With ``converted`` a string may stand for the number that is made of it; ``chosen``: of several that are read there
    in other cases, the one that was seen.
    """

    draft: Draft
    kind: Kind
    node: cst.BaseExpression
    option: str = ""
    converted: bool = False
    chosen: bool = False

    def says(self, value: object) -> bool:
        """Whether `value` is written there."""
        if literal_equals(self.node, value):
            return True
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return self.converted and number and _number(string_value(self.node)) == value

    def written(self, code: str) -> str:
        """The code that has to stand there for the value to be `code`."""
        quoted = self.converted and isinstance(self.node, cst.SimpleString)
        return f'"{code}"' if quoted and not code.startswith(("'", '"')) else code


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def decorations(function: cst.FunctionDef) -> list[cst.Call]:
    """The decorators that are calls."""
    return [each.decorator for each in function.decorators if isinstance(each.decorator, cst.Call)]


def is_click(draft: Draft, decorator: cst.Call, what: str) -> bool:
    """Whether a decorator is click's: ``@click.option(…)``, ``@option(…)`` imported from it."""
    first, _, rest = (get_full_name_for_node(decorator.func) or "").partition(".")
    return (imported_as(draft, first) + ("." + rest if rest else "")) == f"click.{what}"


def click_option(draft: Draft, function: cst.FunctionDef, name: str) -> Origin | None:
    """``@click.option("--batch-size", default=32)`` of a command's parameter; nobody else calls a command."""
    found: list[Origin | None] = []
    for call in decorations(function):
        words = [string_value(arg.value) for arg in call.args if arg.keyword is None]
        own = [word for word in words if word and not word.startswith("-")]
        # Like click: a name that is no option is the parameter's; else the first long option is, else the first.
        long = [word for word in words if word.startswith("--")]
        first = (own or long or words or [""])[0]
        if not is_click(draft, call, "option") or first.lstrip("-").replace("-", "_").lower() != name:
            continue
        flag = argument(call, "is_flag")
        takes_several = any(argument(call, each) is not None for each in ("nargs", "multiple", "callback"))
        option = (long or [word for word in words if word.startswith("-")] or [""])[0]
        if flag is not None and isinstance(flag.value, cst.Name) and flag.value.value == "True":
            found.append(Origin(draft, "flag", call, option))
        elif flag is not None or takes_several or "/" in option or not option:
            found.append(None)
        else:
            found.append(Origin(draft, "option", call, option))
    return found[0] if len(found) == 1 else None


def option_of(draft: Draft, name: str) -> Origin | None:
    """The ``argparse`` option whose destination is `name`; its node is the default, when one is written."""
    parsers = [call for call in draft.nodes(cst.Call) if _method(call.func) in ("parse_args", "parse_known_args")]
    if not parsers:
        return None
    found: list[tuple[cst.Call, str]] = []
    for call in draft.nodes(cst.Call):
        if _method(call.func) == "add_argument":
            flags = [string for arg in call.args if (string := string_value(arg.value)) and arg.keyword is None]
            destination = argument(call, "dest")
            long = [flag for flag in flags if flag.startswith("--")]
            if destination is not None:
                matches = string_value(destination.value) == name
            else:
                matches = (long or flags or [""])[0].lstrip("-").replace("-", "_") == name
            if matches:
                found.append((call, (long or flags)[0]))
    if len(found) != 1:
        return None
    call, option = found[0]
    default = argument(call, "default")
    if any(parser.args for parser in parsers):
        # Arguments given in the source: the command line is not read, the default is what counts.
        return Origin(draft, "default", default.value) if default is not None and is_literal(default.value) else None
    if not option.startswith("-") or argument(call, "nargs") is not None:
        return None
    action = argument(call, "action")
    if action is not None:
        sets = string_value(action.value) == "store_true" or _method(action.value) == "BooleanOptionalAction"
        return Origin(draft, "flag", call, option) if sets else None
    return Origin(draft, "option", default.value if default is not None else call, option)


def _method(node: cst.BaseExpression) -> str:
    return (get_full_name_for_node(node) or "").rpartition(".")[2]
