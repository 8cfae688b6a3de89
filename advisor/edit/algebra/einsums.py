"""Calls of ``torch.einsum`` in the source with three operands and more, and the same in another order."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name

_FEWEST, _MOST = 3, 6  # operands: more are in too many orders to try them all


@dataclass(frozen=True)
class Einsum:
    """What is written: the subscripts of each operand, those of the result, and the line.

    ``plain``: each operand is a name or a part of one, whose order is nobody's matter.
    """

    terms: tuple[str, ...]
    result: str
    line: int
    plain: bool


def einsums(draft: Draft, function: int) -> list[Einsum]:
    """Those of the function that begins at that line (0: outside of all) that are plain sums of products.

    Without ``...``, diagonals ("ii") and labels that only one operand has: what is summed alone is another matter.
    """
    return [found for call in draft.nodes(cst.Call) if (found := _read(draft, call, function)) is not None]


def reorder(draft: Draft, function: int, found: Einsum, order: Sequence[int]) -> str:
    """Have the operands stand in that order; why that is not done, as a clause."""
    calls = [call for call in draft.nodes(cst.Call) if _read(draft, call, function) == found]
    if len(calls) != 1:
        return "which of the calls there is meant cannot be told"
    call = calls[0]
    if not found.plain:
        return "the operands are computed in the call, and would be computed in another order"
    if "#" in draft.code(call):
        return "comments stand between the operands"
    equation, *operands = call.args
    quote = cst.ensure_type(equation.value, cst.SimpleString).quote
    text = f"{quote}{','.join(found.terms[each] for each in order)}->{found.result}{quote}"
    values = ", ".join(draft.code(operands[each].value) for each in order)
    draft.replace(call, f"{draft.code(call.func)}({text}, {values})")
    return ""


def _read(draft: Draft, call: cst.Call, function: int) -> Einsum | None:
    if draft.function_line(call) != function or full_name(draft, call.func) != "torch.einsum":
        return None
    if not _FEWEST < len(call.args) <= _MOST + 1 or any(each.keyword or each.star for each in call.args):
        return None
    equation = call.args[0].value
    text = equation.evaluated_value if isinstance(equation, cst.SimpleString) else None
    if not isinstance(text, str):
        return None
    given, arrow, result = text.replace(" ", "").partition("->")
    terms = tuple(given.split(","))
    counted = Counter("".join(terms))
    if not arrow:
        result = "".join(sorted(label for label, times in counted.items() if times == 1))
    if len(terms) != len(call.args) - 1 or not set("".join(terms) + result) <= set(string.ascii_letters):
        return None
    if any(len(set(each)) < len(each) or not each for each in terms) or not set(result) <= set(counted):
        return None
    if any(times == 1 and label not in result for label, times in counted.items()):
        return None
    plain = all(_is_plain(each.value) for each in call.args[1:])
    return Einsum(terms, result, draft.line(call), plain)


def _is_plain(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) or (isinstance(value, cst.Attribute) and _is_plain(value.value))
