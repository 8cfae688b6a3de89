"""Attention whose scores are only divided by their sums: no softmax keeps its products from being made the other way.

Told by the products of the window that records their shapes: scores, their sum over the keys, a division of the scores
by it, a product of that with the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from advisor.evidence.algebra.product_order import LEAST, PRODUCTS, Operand, cost, gives
from advisor.evidence.by_function import Calls, Function
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.shapes import Shape

_AFTER = 12  # operators between the scores and their product with the values
_SUM, _SCALES = "aten::sum", ("aten::div", "aten::div_", "aten::mul", "aten::mul_")
_LEAST_DIMENSIONS = 3  # of scores: batches or heads of them


@dataclass(frozen=True)
class LinearAttention:
    """Attention in ``function``: so many ``queries`` and ``keys`` of ``width`` numbers, and ``values`` of each."""

    function: Function
    queries: int
    keys: int
    width: int
    values: int


@dataclass(frozen=True)
class _Found:
    first: int  # rows of the products
    last: int
    between: list[int]  # of what goes over all scores
    shapes: tuple[Shape, Shape, Shape]  # of queries, keys and values


def linear_attention(evidence: Evidence) -> tuple[dict[LinearAttention, float], dict[str, float]]:
    """Times per step; operator → share of its own time that goes where keys and values are multiplied first."""
    calls = evidence.calls
    if calls is None:
        return {}, {}
    known = [(each, left) for each in _found(calls) if (left := _left(each)) is not None]
    functions = calls.functions(evidence, {each.last for each, _ in known})
    counted: list[LinearAttention] = []
    shares: list[dict[str, float]] = []
    for each, left in known:
        if (function := functions.get(each.last)) is None:
            continue
        queries, keys, values = each.shapes
        counted.append(LinearAttention(function, queries[-2], keys[-1], queries[-1], values[-1]))
        shares.append(calls.shares([each.first, each.last], left))
        if each.between:  # what is divided then are as many numbers as there are values
            shares.append(calls.shares(each.between, min(1.0, values[-1] / keys[-1])))
    return calls.per_step(counted), added_up(shares)


def _left(found: _Found) -> float | None:
    """What is left of the products' time; None where that is not worth a word."""
    operands = tuple(Operand(prod(each[:-2]), each[-2], each[-1], trained=True) for each in found.shapes)
    now, then = cost(operands, ((0, 1), 2)), cost(operands, (0, (1, 2)))
    return then / now if now >= LEAST * then else None


def _found(calls: Calls) -> Iterator[_Found]:
    for rows in calls.threads:
        for at, row in enumerate(rows):
            scores = gives(calls, row) if calls.name(row) in PRODUCTS and len(calls.shapes(row)) > 1 else ()
            if len(scores) >= _LEAST_DIMENSIONS and (one := _divided(calls, row, scores, rows[at + 1 :])) is not None:
                yield one


def _divided(calls: Calls, row: int, scores: Shape, after: list[int]) -> _Found | None:
    """The attention that begins with these scores, if all that is done with them is to divide them by their sums."""
    between: list[int] = []
    summed = divided = False
    for each in after[:_AFTER]:
        name, shapes = calls.name(each), calls.shapes(each)
        if scores not in shapes:
            continue
        others = [shape for shape in shapes[1:] if shape]
        if name in PRODUCTS and shapes[0] == scores and len(shapes) > 1 and len(shapes[1]) >= _LEAST_DIMENSIONS:
            queries, keys = calls.shapes(row)[:2]
            return _Found(row, each, between, (queries, keys, shapes[1])) if divided else None
        if name == _SUM and _over_keys(calls, each, len(scores)):
            summed = True
        elif name in _SCALES and shapes[0] == scores and all(shape[-1] == 1 for shape in others):
            divided |= summed and bool(others)
        else:
            return None  # a mask, a dropout, a softmax
        between.append(each)
    return None


def _over_keys(calls: Calls, row: int, dimensions: int) -> bool:
    dims = [*calls.values(row)[1:2], ""][0].strip("[]").split(",")
    return len(dims) == 1 and dims[0].strip().lstrip("-").isdigit() and int(dims[0]) in (-1, dimensions - 1)
