"""Layers whose weight is a frozen one and a product of two narrow matrices, ``W + s * (B @ A)``, become two layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import held_once

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


_Held = tuple[cst.SimpleStatementLine, ...]


def _parts(draft: Draft, call: cst.Call) -> Merged | None:
    whole, names = _meant(draft, call.args[1].value)
    if not isinstance(whole, cst.BinaryOperation) or not isinstance(whole.operator, cst.Add):
        return None
    for base, other in ((whole.left, whole.right), (whole.right, whole.left)):
        product = _scaled(draft, other)
        if product is not None and isinstance(base, _PLAIN):
            left, right, factors, held = product
            return Merged(call, draft.code(base), left, right, factors, (*names, *held))
    return None


def _meant(draft: Draft, node: cst.BaseExpression) -> tuple[cst.BaseExpression, _Held]:
    """What a name stands for that is given its value right before and read once, and the lines that give it."""
    held = held_once(draft, node) if isinstance(node, cst.Name) else None
    if held is None:
        return node, ()
    value, more = _meant(draft, held[0])
    return value, (held[1], *more)


def _scaled(draft: Draft, node: cst.BaseExpression) -> tuple[str, str, tuple[str, ...], _Held] | None:
    """(B, A, what it is multiplied by, lines that held it) of ``s * (B @ A)``, ``(B @ A) * s`` and ``s * B @ A``."""
    node, held = _meant(draft, node)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        left = node.left  # what B is multiplied by number by number stays with it
        parts = (left.left, left.right) if isinstance(left, cst.BinaryOperation) else (left,)
        times = not isinstance(left, cst.BinaryOperation) or isinstance(left.operator, cst.Multiply)
        if times and all(isinstance(each, _PLAIN) for each in (*parts, node.right)):
            return draft.code(left), draft.code(node.right), (), held
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        for number, product in ((node.left, node.right), (node.right, node.left)):
            inner = _scaled(draft, product) if _is_number(draft, number) else None
            if inner is not None:
                return inner[0], inner[1], (*inner[2], draft.code(number)), (*held, *inner[3])
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _PRODUCTS and len(node.args) == 2:
        first, second = (each.value for each in node.args)
        plain = isinstance(first, _PLAIN) and isinstance(second, _PLAIN)
        if plain and not any(each.star or each.keyword for each in node.args):
            return draft.code(first), draft.code(second), (), held
    return None


def _is_number(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether it is one number, as far as the file tells: a vector would belong to rows or to columns of the weight."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return True
    name = last_part(node)
    made = [assign.value for assign in draft.nodes(cst.Assign) if name in [last_part(t.target) for t in assign.targets]]
    return bool(name) and all(_is_scalar(draft, value) for value in made if isinstance(value, cst.Call))


def _is_scalar(draft: Draft, made: cst.Call) -> bool:
    """Whether a call makes no tensor, or one of a number that is written there."""
    called, last = full_name(draft, made.func), last_part(made.func)
    if not called.startswith("torch.") and last not in ("Parameter", "Buffer"):
        return True
    given = made.args[0].value if len(made.args) == 1 else None
    if last == "Parameter":
        return isinstance(given, cst.Call) and _is_scalar(draft, given)
    return last in ("tensor", "as_tensor") and isinstance(given, (cst.Integer, cst.Float))
