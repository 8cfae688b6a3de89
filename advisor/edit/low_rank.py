"""Layers whose weight is a frozen one and a product of two narrow matrices, ``W + s * (B @ A)``, become two layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.origin import held_once

_LAYER = "torch.nn.functional.linear"
_PRODUCTS = ("torch.mm", "torch.matmul")
_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)


@dataclass(frozen=True)
class Merged:
    """A call of ``F.linear`` and what its weight is made of: ``base`` and ``factors`` times ``left @ right``.

    ``names`` are the statements that hold parts of it, which nothing else needs.
    """

    call: cst.Call
    base: str
    left: str
    right: str
    factors: tuple[str, ...]
    names: tuple[cst.SimpleStatementLine, ...]


def merged_weights(draft: Draft, line: int) -> Iterator[Merged]:
    """The layers in the function that begins at `line` (0: outside of all) whose weight is such a sum."""
    for call in draft.nodes(cst.Call):
        if draft.function_line(call) != line or full_name(draft, call.func) != _LAYER or len(call.args) not in (2, 3):
            continue
        keywords = [None if each.keyword is None else each.keyword.value for each in call.args]
        if keywords not in ([None, None], [None, None, None], [None, None, "bias"]) or any(a.star for a in call.args):
            continue
        found = _parts(draft, call)
        if found is not None:
            yield found


def split(draft: Draft, found: Merged) -> bool:
    """Have the layer be two, the frozen one and the narrow one; whether that could be done."""
    given, _, *bias = found.call.args
    x = draft.code(given.value)
    if not isinstance(given.value, (cst.Name, cst.Attribute)) or "#" in draft.code(found.call):
        return False
    layer = draft.code(found.call.func)
    first = ", ".join([x, found.base, *(draft.code(each.value) for each in bias)])
    narrow = f"{layer}({layer}({x}, {found.right}), {found.left})"
    code = " * ".join([f"{layer}({first}) + {narrow}", *found.factors])
    # As a whole value it needs no parentheses; beside an operator, or before a dot, it does.
    above = draft.parent(found.call)
    whole = isinstance(above, (cst.Return, cst.Assign, cst.AnnAssign, cst.Expr, cst.Arg))
    draft.replace(found.call, code if whole else f"({code})")
    for each in found.names:
        draft.remove(each)
    return True


def _parts(draft: Draft, call: cst.Call) -> Merged | None:
    names: list[cst.SimpleStatementLine] = []

    def meant(node: cst.BaseExpression) -> cst.BaseExpression:
        """What a name stands for that is given its value once, right here, and read once."""
        held = held_once(draft, node) if isinstance(node, cst.Name) else None
        if held is None:
            return node
        names.append(held[1])
        return meant(held[0])

    whole = meant(call.args[1].value)
    if not isinstance(whole, cst.BinaryOperation) or not isinstance(whole.operator, cst.Add):
        return None
    for base, other in ((whole.left, whole.right), (whole.right, whole.left)):
        before = len(names)
        product = _scaled(draft, meant(other), meant)
        if product is not None and isinstance(base, _PLAIN):
            left, right, factors = product
            return Merged(call, draft.code(base), left, right, factors, tuple(names))
        del names[before:]
    return None


def _scaled(
    draft: Draft, node: cst.BaseExpression, meant: Callable[[cst.BaseExpression], cst.BaseExpression]
) -> tuple[str, str, tuple[str, ...]] | None:
    """(B, A, what it is multiplied by) of ``s * (B @ A)``, ``(B @ A) * s``, ``s * B @ A`` and ``B @ A``."""
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.MatrixMultiply):
            left, factors = node.left, tuple[str, ...]()
            if isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Multiply):
                number, left = left.left, left.right
                if not _is_number(number):
                    return None
                factors = (draft.code(number),)
            if isinstance(left, _PLAIN) and isinstance(node.right, _PLAIN):
                return draft.code(left), draft.code(node.right), factors
        if isinstance(node.operator, cst.Multiply):
            for number, product in ((node.left, node.right), (node.right, node.left)):
                inner = _scaled(draft, meant(product), meant) if _is_number(number) else None
                if inner is not None:
                    return inner[0], inner[1], (*inner[2], draft.code(number))
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _PRODUCTS and len(node.args) == 2:
        left, right = (each.value for each in node.args)
        if not any(each.star or each.keyword for each in node.args) and isinstance(left, _PLAIN):
            return (draft.code(left), draft.code(right), ()) if isinstance(right, _PLAIN) else None
    return None


def _is_number(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Name, cst.Attribute, cst.Integer, cst.Float))
