"""``torch.einsum`` of two tensors as the letters of its equation say it, and the order of dimensions."""

from __future__ import annotations

import re

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name

_EQUATION = re.compile(r"([a-zA-Z]{3,4}),([a-zA-Z]{3,4})->([a-zA-Z]{3,4})")
_ARGUMENTS = 3  # the equation and two tensors


def equation(draft: Draft, node: cst.CSTNode) -> tuple[str, str, str] | None:
    """Letters of the factors and of the result of an ``einsum`` of two tensors with three or four dimensions each."""
    if not isinstance(node, cst.Call) or len(node.args) != _ARGUMENTS:
        return None
    if full_name(draft, node.func) != "torch.einsum" or any(arg.star or arg.keyword is not None for arg in node.args):
        return None
    text = node.args[0].value
    said = text.evaluated_value if isinstance(text, cst.SimpleString) else None
    found = _EQUATION.fullmatch(said.replace(" ", "")) if isinstance(said, str) else None
    if found is None:
        return None
    letters = found[1], found[2], found[3]
    # A letter twice takes a diagonal; of a product of attention each tensor lacks one of the other's dimensions.
    if any(len({*each}) != len(each) for each in letters) or len({len(each) for each in letters}) != 1:
        return None
    return letters if all(len({*one} - {*other}) == 1 for one in letters for other in letters if one != other) else None


def reordering(letters: str, wanted: str) -> str:
    """The method call that brings dimensions named by `letters` into the order `wanted`; "" where they have it."""
    order = [letters.index(each) for each in wanted]
    moved = [number for number, at in enumerate(order) if number != at]
    if not moved:
        return ""
    if len(moved) == 2:
        return f".transpose({moved[0]}, {moved[1]})"
    return f".permute({', '.join(map(str, order))})"
