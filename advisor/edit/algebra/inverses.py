"""``torch.inverse(A) @ b`` and the like become ``torch.linalg.solve(A, b)``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import ensure_name, full_name, plain_name
from advisor.edit.scopes import held_once

_INVERSES = ("torch.inverse", "torch.linalg.inv")
_PRODUCTS = ("torch.matmul", "torch.mm", "torch.bmm")


@dataclass(frozen=True)
class Inverted:
    """A product one of whose operands is an inverse: of ``matrix``, times ``other``, from the left or the right.

    ``held``: the line that gives the inverse its name, where nothing else needs it.
    """

    product: cst.BaseExpression
    matrix: str
    other: cst.BaseExpression
    left: bool
    held: cst.SimpleStatementLine | None


def inverses(draft: Draft, line: int) -> list[Inverted | cst.Call]:
    """The inverses in the function that begins at `line` (0: outside of all); plain calls where no product is all."""
    found: list[Inverted | cst.Call] = []
    for call in draft.nodes(cst.Call):
        if draft.function_line(call) == line and (matrix := _matrix(draft, call)):
            found.append(_product(draft, call, matrix) or call)
    return found


def solve(draft: Draft, found: Inverted) -> None:
    """Have the product be the solution of a system."""
    function = ensure_name(draft, "torch.linalg.solve")
    side = "" if found.left else ", left=False"
    draft.replace(found.product, f"{function}({found.matrix}, {_bare(draft, found.other)}{side})")
    if found.held is not None:
        draft.remove(found.held)


def _matrix(draft: Draft, call: cst.Call) -> str:
    """The code of what is inverted; "" for another call."""
    if full_name(draft, call.func) in _INVERSES:
        plain = len(call.args) == 1 and not call.args[0].star and call.args[0].keyword is None
        return _bare(draft, call.args[0].value) if plain else ""
    method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "inverse" and not call.args
    known = bool(plain_name(call.func)) and full_name(draft, call.func).startswith(("torch.", "numpy."))
    return _bare(draft, cst.ensure_type(call.func, cst.Attribute).value) if method and not known else ""


def _product(draft: Draft, call: cst.Call, matrix: str) -> Inverted | None:
    node: cst.BaseExpression = call
    held = None
    above = draft.parent(call)
    if isinstance(above, cst.Assign) and len(above.targets) == 1 and isinstance(above.targets[0].target, cst.Name):
        name = above.targets[0].target.value
        reads = [
            each
            for each in draft.nodes(cst.Name, draft.function(call))
            if each.value == name and (value := held_once(draft, each)) is not None and value[0] is call
        ]
        if len(reads) != 1:
            return None
        node, (_, held) = reads[0], held_once(draft, reads[0]) or (None, None)
    sides = _sides(draft, node)
    if sides is None or "#" in draft.code(sides[0]):
        return None
    product, other, left = sides
    return Inverted(product, matrix, other, left, held)


def _sides(draft: Draft, node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression, bool] | None:
    """(product, its other operand, whether `node` is the left one)."""
    above = draft.parent(node)
    if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.MatrixMultiply):
        return (above, above.right, True) if above.left is node else (above, above.left, False)
    call = draft.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or full_name(draft, call.func) not in _PRODUCTS or len(call.args) != 2:
        return None
    if any(each.keyword or each.star for each in call.args):
        return None
    left = call.args[0].value is node
    return call, call.args[1 if left else 0].value, left


def _bare(draft: Draft, node: cst.BaseExpression) -> str:
    """The code of an expression without parentheses around it, as an argument needs none."""
    code = draft.code(node)
    return code[1:-1].strip() if node.lpar and not isinstance(node, cst.Tuple) else code
