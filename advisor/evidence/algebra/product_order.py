"""Chains of matrix products, ``A @ B @ x``, that are multiplied in an order which takes more operations than another.

Told by the products that follow each other in the window that records their shapes, each of which is given what the one
before gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from advisor.evidence.by_function import Calls, Function
from advisor.evidence.shapes import Shape
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm")
_MULTIPLY = ("aten::mm", "aten::bmm", "aten::addmm", "aten::mv", "aten::dot")
_VIEWS = ("aten::t", "aten::transpose", "aten::numpy_T", "aten::mT", "aten::permute", "aten::unsqueeze", "aten::view")
_LONGEST = 6  # operands: nobody writes more in one line
LEAST = 1.5  # times as much work as the best order, from which an order is worth a word
# Numbers read or written that take as long as one multiplication and addition: both of a core with AVX2, some 50
# Gflop/s and 10 GB/s; a GPU's ratio is larger still, as its products are.
FLOP_PER_NUMBER = 20.0


Order: TypeAlias = "int | tuple[Order, Order]"
"""How a chain is multiplied: the number of an operand, or a pair of such orders."""


@dataclass(frozen=True)
class Operand:
    """A matrix of a chain, ``batch`` of them; ``trained`` where the backward computes its gradient."""

    batch: int
    rows: int
    columns: int
    trained: bool = False


@dataclass(frozen=True)
class Chain:
    """Products in ``function`` one after the other, and the best ``order`` of them: nested pairs of operand numbers."""

    function: Function
    order: Order
    operands: int


@dataclass
class Chains:
    """What was found: times per step of those that cost too much, and the largest product of each.

    ``shares``: operator → share of its own time that goes in the best order. ``in_order``: function → the best orders
    of all its chains in the first step, one after the other.
    """

    counts: dict[Chain, float] = field(default_factory=dict)
    largest: dict[Chain, Shape] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    in_order: dict[Function, list[tuple[int, Order]]] = field(default_factory=dict)


def costly_chains(evidence: Evidence) -> Chains:
    """The chains of the steps."""
    calls, found = evidence.calls, Chains()
    if calls is None:
        return found
    known = [(rows, operands) for rows in _chains(calls) if (operands := _operands(calls, rows)) is not None]
    functions = calls.functions(evidence, {row for rows, _ in known for row in rows})
    costly: list[Chain] = []
    by_left: dict[float, list[int]] = {}
    for rows, operands in known:
        inside = {functions.get(row) for row in rows}
        function = inside.pop()
        if function is None or inside:
            continue
        written = _left_to_right(len(operands))
        now, (best, order) = cost(operands, written), cheapest(operands)
        chain = Chain(function, order if now >= LEAST * best else written, len(operands))
        if calls.step(rows[0]) == 0:
            found.in_order.setdefault(function, []).append((chain.operands, chain.order))
        if now >= LEAST * best:
            costly.append(chain)
            found.largest[chain] = max((gives(calls, row) for row in rows), key=prod)
            by_left.setdefault(best / now, []).extend(rows)
    found.counts = calls.per_step(costly)
    found.shares = added_up(calls.shares(rows, left) for left, rows in by_left.items())
    return found


@lru_cache(maxsize=1024)
def cheapest(operands: tuple[Operand, ...]) -> tuple[float, Order]:
    """(cost, order) of the order that costs least: every way to put the parentheses is tried."""
    ways = [(cost(operands, order), order) for order in _orders(0, len(operands))]
    return min(ways, key=lambda way: way[0])


def _orders(first: int, last: int) -> list[Order]:
    if last - first == 1:
        return [first]
    return [
        (left, right) for at in range(first + 1, last) for left in _orders(first, at) for right in _orders(at, last)
    ]


def _left_to_right(operands: int) -> Order:
    order: Order = 0
    for each in range(1, operands):
        order = (order, each)
    return order


def cost(operands: tuple[Operand, ...], order: Order) -> float:
    """Operations of all products in that order, with their backward's, and what reading and writing is worth."""
    total = 0.0

    def made(part: Order) -> Operand:
        nonlocal total
        if isinstance(part, int):
            return operands[part]
        left, right = (made(each) for each in part)
        batch = max(left.batch, right.batch)
        numbers = left.batch * left.rows * left.columns + right.batch * right.rows * right.columns
        numbers += batch * left.rows * right.columns
        once = 2.0 * batch * left.rows * left.columns * right.columns + FLOP_PER_NUMBER * numbers
        total += once * (1 + left.trained + right.trained)
        return Operand(batch, left.rows, right.columns, left.trained or right.trained)

    made(order)
    return total


def _chains(calls: Calls) -> Iterator[list[int]]:
    """Rows of products of which each is given what the one before gave, as its left operand."""
    for rows in calls.threads:
        chain: list[int] = []
        for row in rows:
            name = calls.name(row)
            if name in PRODUCTS and len(calls.shapes(row)) > 1:
                if chain and calls.shapes(row)[0] == gives(calls, chain[-1]) != ():
                    chain.append(row)
                    continue
                yield from _long(chain)
                chain = [row]
            elif name not in _VIEWS:
                yield from _long(chain)
                chain = []
        yield from _long(chain)


def _long(chain: list[int]) -> Iterator[list[int]]:
    if 2 <= len(chain) < _LONGEST:
        yield chain


def gives(calls: Calls, row: int) -> Shape:
    """The shape of a product; () where one of its operands is a vector, or it is none."""
    given: list[Shape] = [*calls.shapes(row), (), ()]
    left, right = given[:2]
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return ()
    ahead = left[:-2] if len(left) >= len(right) else right[:-2]
    return (*ahead, left[-2], right[-1])


def _operands(calls: Calls, rows: list[int]) -> tuple[Operand, ...] | None:
    """The matrices of a chain, of which only the last may be a vector."""
    shapes = [calls.shapes(rows[0])[0], *(calls.shapes(row)[1] for row in rows)]
    if any(len(each) < 2 for each in shapes[:-1]) or not shapes[-1] or 0 in (size for each in shapes for size in each):
        return None
    if len(shapes[-1]) == 1:
        shapes[-1] = (*shapes[-1], 1)
    trained = [False] * len(shapes)
    before = False
    for at, row in enumerate(rows):
        # How many gradients the backward of this product computes: of what came before, of its right operand, or both.
        gradients = sum(calls.inside(node, _MULTIPLY) for node in calls.nodes([row]))
        if at == 0:
            trained[0], trained[1] = gradients > 1, gradients > 0
        else:
            trained[at + 1] = gradients > 1 or (gradients > 0 and not before)
        before |= gradients > 0
    pairs = zip(shapes, trained, strict=True)
    return tuple(Operand(prod(shape[:-2]), shape[-2], shape[-1], each) for shape, each in pairs)
