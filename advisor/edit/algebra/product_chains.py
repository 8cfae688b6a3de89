"""Chains of matrix products in the source, ``A @ B @ x``, and the same with other parentheses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.scopes import held_once, variables

_PRODUCTS = ("torch.matmul", "torch.mm", "torch.bmm")
_NARROW = ("torch.mm", "torch.bmm")


Order: TypeAlias = "int | tuple[Order, Order]"
"""How a chain is multiplied: the number of an operand, or a pair of such orders."""


@dataclass(frozen=True)
class ProductChain:
    """A product whose left operand is a product, and so on: its operands from left to right.

    ``held``: the lines that give products of it a name, which nothing else needs.
    """

    whole: cst.BaseExpression
    operands: tuple[cst.BaseExpression, ...]
    held: tuple[cst.SimpleStatementLine, ...]


def product_chains(draft: Draft, line: int, operands: int) -> list[ProductChain]:
    """Those of so many operands in the function that begins at `line` (0: outside of all), in the order of the text."""
    found = []
    for node in (*draft.nodes(cst.BinaryOperation), *draft.nodes(cst.Call)):
        if draft.function_line(node) != line or _factors(draft, node) is None or _goes_on(draft, node):
            continue
        parts, held = _flat(draft, node)
        if len(parts) == operands:
            found.append(ProductChain(node, tuple(parts), tuple(held)))
    return sorted(found, key=lambda each: (draft.line(each.whole), draft.position(each.whole).start.column))


def reorder(draft: Draft, found: ProductChain, order: Order) -> None:
    """Have the products be multiplied in that order: nested pairs of operand numbers."""
    functions = _functions(draft, found.whole)
    function = full_name(draft, found.whole.func) if isinstance(found.whole, cst.Call) else ""
    # mm and bmm take no other dimensions than theirs, as what another product is of may have.
    narrow = function in _NARROW and len(functions) > 1
    function = "" if narrow else function

    def written(part: Order, alone: bool) -> str:
        if isinstance(part, int):
            return draft.code(found.operands[part])
        left, right = part
        if function:
            own = draft.code(cst.ensure_type(found.whole, cst.Call).func)
            return f"{own}({written(left, True)}, {written(right, True)})"
        code = f"{written(left, isinstance(left, tuple))} @ {written(right, False)}"
        return code if alone else f"({code})"

    code = written(order, True)
    alone = isinstance(draft.parent(found.whole), (cst.Assign, cst.AnnAssign, cst.Arg, cst.Return))
    parentheses = not alone if narrow else not function and bool(found.whole.lpar)
    draft.replace(found.whole, f"({code})" if parentheses else code)
    for each in found.held:
        draft.remove(each)


def _factors(draft: Draft, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The two operands of a product."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return node.left, node.right
    if not isinstance(node, cst.Call) or full_name(draft, node.func) not in _PRODUCTS or len(node.args) != 2:
        return None
    plain = not any(each.keyword or each.star for each in node.args)
    return (node.args[0].value, node.args[1].value) if plain else None


def _flat(draft: Draft, node: cst.BaseExpression) -> tuple[list[cst.BaseExpression], list[cst.SimpleStatementLine]]:
    factors = _factors(draft, node)
    if factors is None:
        held = held_once(draft, node) if isinstance(node, cst.Name) else None
        if held is None or _factors(draft, held[0]) is None:
            return [node], []
        parts, more = _flat(draft, held[0])
        return parts, [held[1], *more]
    left, held_left = _flat(draft, factors[0])
    return [*left, factors[1]], held_left


def _functions(draft: Draft, node: cst.BaseExpression) -> set[str]:
    """The functions that a chain's products are written with; "" for ``@``."""
    factors = _factors(draft, node)
    if factors is None:
        held = held_once(draft, node) if isinstance(node, cst.Name) else None
        return _functions(draft, held[0]) if held is not None and _factors(draft, held[0]) is not None else set()
    own = full_name(draft, node.func) if isinstance(node, cst.Call) else ""
    return {own} | _functions(draft, factors[0])


def _goes_on(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether a product is the left operand of another one, which is looked at as a whole."""
    if _is_left(draft, node):
        return True
    above = draft.parent(node)
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return False
    reads = (each for each in variables(draft, target.value, draft.function(node)) if each is not target)
    return any(
        (held := held_once(draft, each)) is not None and held[0] is node and _is_left(draft, each) for each in reads
    )


def _is_left(draft: Draft, node: cst.BaseExpression) -> bool:
    above = draft.parent(node)
    outer = draft.parent(above) if isinstance(above, cst.Arg) else above
    factors = _factors(draft, outer) if outer is not None else None
    return factors is not None and factors[0] is node
