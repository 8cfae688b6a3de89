"""``torch.diag(A @ B)`` becomes ``(A * B.mT).sum(-1)``, and ``torch.trace`` of it the sum of all."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name, plain_name
from advisor.edit.scopes import held_once

_PRODUCTS = ("torch.matmul", "torch.mm")
_TAKEN = {"trace": ".sum()", "diag": ".sum(-1)", "diagonal": ".sum(-1)"}
_LINEAR = (cst.Add, cst.Subtract)


@dataclass(frozen=True)
class Taken:
    """A call that takes a diagonal, what may stand in its place, and the line that went before it, if that can go.

    ``products``: of so many products, which are added up.
    """

    call: cst.Call
    code: str
    held: cst.SimpleStatementLine | None
    products: int


def diagonals(draft: Draft, line: int) -> list[Taken | cst.Call]:
    """What takes a diagonal, or makes a matrix of one, in the function that begins at `line` (0: outside of all).

    Plain calls where it is not of products alone.
    """
    found: list[Taken | cst.Call] = []
    for call in draft.nodes(cst.Call):
        if draft.function_line(call) != line or (of := _matrix(draft, call)) is None:
            continue
        how, matrix = of
        value, held = held_once(draft, matrix) or (matrix, None) if isinstance(matrix, cst.Name) else (matrix, None)
        code = _of_rows(draft, value, _TAKEN[how])
        if code:
            loose = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, _LINEAR)
            found.append(Taken(call, f"({code})" if loose else code, held, _products(value)))
        else:
            found.append(call)
    return found


def take(draft: Draft, found: Taken) -> None:
    """Have the rows be multiplied."""
    draft.replace(found.call, found.code)
    if found.held is not None:
        draft.remove(found.held)


def _matrix(draft: Draft, call: cst.Call) -> tuple[str, cst.BaseExpression] | None:
    """What takes the diagonal, and of what: ``torch.diag(x)`` or ``x.diag()``."""
    full = full_name(draft, call.func)
    name = full.removeprefix("torch.")
    if full.startswith("torch.") and name in _TAKEN:
        plain = len(call.args) == 1 and not call.args[0].star and call.args[0].keyword is None
        return (name, call.args[0].value) if plain else None
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _TAKEN or call.args:
        return None
    known = bool(plain_name(call.func)) and full.startswith(("torch.", "numpy."))
    return None if known else (call.func.attr.value, call.func.value)


def _of_rows(draft: Draft, node: cst.BaseExpression, total: str) -> str:
    """The same of a product's rows, or of sums of products; "" for anything else."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _LINEAR):
        left, right = (_of_rows(draft, each, total) for each in (node.left, node.right))
        sign = "+" if isinstance(node.operator, cst.Add) else "-"
        if right and isinstance(node.right, cst.BinaryOperation) and isinstance(node.right.operator, _LINEAR):
            right = f"({right})"
        return f"{left} {sign} {right}" if left and right else ""
    sides = product_sides(draft, node)
    if sides is None or "#" in draft.code(node):
        return ""
    return f"({_factor(draft, sides[0])} * {transposed(draft, sides[1])}){total}"


def _products(node: cst.BaseExpression) -> int:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _LINEAR):
        return _products(node.left) + _products(node.right)
    return 1


def product_sides(draft: Draft, node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """What is multiplied there, as matrices; None where nothing is."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return node.left, node.right
    if not isinstance(node, cst.Call) or any(each.keyword or each.star for each in node.args):
        return None
    if full_name(draft, node.func) in _PRODUCTS and len(node.args) == 2:
        return node.args[0].value, node.args[1].value
    method = isinstance(node.func, cst.Attribute) and node.func.attr.value in ("mm", "matmul")
    if method and len(node.args) == 1 and not full_name(draft, node.func).startswith(("torch.", "numpy.")):
        return cst.ensure_type(node.func, cst.Attribute).value, node.args[0].value
    return None


def _factor(draft: Draft, node: cst.BaseExpression, right: bool = False) -> str:
    """The code of an expression as a factor."""
    code = draft.code(node)
    product = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Multiply, cst.MatrixMultiply))
    loose = isinstance(node, (cst.BinaryOperation, cst.IfExp, cst.Comparison, cst.BooleanOperation, cst.UnaryOperation))
    return code if node.lpar or not loose or (product and not right) else f"({code})"


def transposed(draft: Draft, node: cst.BaseExpression) -> str:
    """The code of an expression's transpose: without the one that it has, if that is written."""
    if isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT"):
        return _factor(draft, node.value, right=True)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        given = [draft.code(each.value) for each in node.args]
        if full_name(draft, node.func) in ("torch.t", "torch.transpose") and given[1:] in ([], *_SWAPPED):
            return _factor(draft, node.args[0].value, right=True)
        if (node.func.attr.value == "t" and not given) or (node.func.attr.value == "transpose" and given in _SWAPPED):
            return _factor(draft, node.func.value, right=True)
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar
    return f"{draft.code(node)}.mT" if simple else f"({draft.code(node)}).mT"


_SWAPPED = (["0", "1"], ["1", "0"], ["-1", "-2"], ["-2", "-1"])
