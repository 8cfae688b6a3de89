"""Where a script that makes its batches by hand says how large they are: by the name that it gives the number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import last_part
from advisor.edit.origin import string_value

_NAME = re.compile(
    r"(?:(?:train(?:ing)?|mini|per_?device|local)_?)*(?:batch(?:_?(?:size|sz))?|bs|bsz|bsize)", re.IGNORECASE
)


@dataclass(frozen=True)
class SaidSize:
    """A number in the source; ``option`` is what sets it on the command line, empty for a constant."""

    node: cst.BaseExpression
    option: str = ""


def said_sizes(draft: Draft, size: int, argv: Sequence[str] = ()) -> Iterator[SaidSize]:
    """Places where a batch size of `size` is written: constants, fields, defaults, entries, keyword arguments.

    An option counts with another default, too, if `argv` gives it that size.
    """
    for call in draft.nodes(cst.Call):
        flags = [flag for arg in call.args if (flag := string_value(arg.value)) and arg.keyword is None]
        named = [flag for flag in flags if flag.startswith("-") and _is_name(flag.lstrip("-").replace("-", "_"))]
        if named:
            default = argument(call, "default")
            written = default.value if default is not None else call
            if _given(argv, flags) == str(size) or (_is(written, size) and _given(argv, flags) is None):
                yield SaidSize(written, max(named, key=len))
            continue
        for arg in call.args:
            if arg.keyword is not None and _is_name(arg.keyword.value) and _is(arg.value, size):
                yield SaidSize(arg.value)
    for assign in draft.nodes(cst.Assign):
        if len(assign.targets) == 1 and _is_name(last_part(assign.targets[0].target)) and _is(assign.value, size):
            yield SaidSize(assign.value)
    for field in draft.nodes(cst.AnnAssign):
        if field.value is not None and _is_name(last_part(field.target)) and _is(field.value, size):
            yield SaidSize(field.value)
    for parameter in draft.nodes(cst.Param):
        if parameter.default is not None and _is_name(parameter.name.value) and _is(parameter.default, size):
            yield SaidSize(parameter.default)
    for entry in draft.nodes(cst.DictElement):
        if _is_name(string_value(entry.key) or "") and _is(entry.value, size):
            yield SaidSize(entry.value)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _is(node: cst.BaseExpression, size: int) -> bool:
    return isinstance(node, cst.Integer) and node.evaluated_value == size


def _given(argv: Sequence[str], flags: Sequence[str]) -> str | None:
    """What the command line says for an option; None where it says nothing."""
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else next(iter(argv[number + 1 :]), "")
    return None
