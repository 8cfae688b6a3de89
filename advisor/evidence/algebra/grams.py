"""Gram matrices of the longer side of a matrix, where those of the shorter one would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Calls, Function
from advisor.evidence.shapes import Shape
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm")
_VIEWS = frozenset(f"aten::{name}" for name in ("t", "transpose", "numpy_T", "mT", "permute", "adjoint", "expand"))
# What a polynomial of a matrix is made of, beside products: with numbers, or sums of its powers.
_LINEAR = frozenset(
    f"aten::{name}" for name in ("mul", "mul_", "add", "add_", "sub", "sub_", "div", "div_", "neg", "rsub")
)
_SCALES = ("aten::mul", "aten::mul_", "aten::div", "aten::div_")
_FARTHEST = 24  # outermost operators from a Gram matrix to what it is multiplied with
_PENALTY = 8  # outermost operators that make a number of it
LEAST_ROWS, LEAST_RATIO = 64, 1.5  # of smaller ones calling takes the time; times as long as the other side


@dataclass(frozen=True)
class LongGram:
    """``function`` computes the Gram matrix of the ``longer`` side of matrices, whose other one has ``shorter``.

    ``again``: the matrix is multiplied with a polynomial of it; else it is looked at by itself.
    """

    function: Function
    longer: int
    shorter: int
    again: bool


@dataclass
class LongGrams:
    """Times per step of each; operator → share of its own time that goes on the shorter side."""

    counts: dict[LongGram, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def long_grams(evidence: Evidence, in_source: Callable[[LongGram], bool]) -> LongGrams:
    """Those of the steps, optimizers included, that `in_source` says the source to have."""
    if evidence.detail is None or evidence.record is None or not len(evidence.detail.operators):
        return LongGrams()
    calls = Calls(evidence.detail, optimizers=True)
    found = [each for rows in calls.threads for at in range(len(rows)) if (each := _gram(calls, rows, at)) is not None]
    functions = calls.functions(evidence, {row for each in found for row in each.rows})
    known: dict[LongGram, bool] = {}
    counted: list[LongGram] = []
    by_left: dict[float, list[int]] = {}
    for each in found:
        inside = {functions.get(row) for row in each.rows}
        function = inside.pop()
        if function is None or inside:
            continue
        gram = LongGram(function, each.longer, each.shorter, each.again)
        if gram not in known:
            known[gram] = in_source(gram)
        if known[gram]:
            counted.append(gram)
            for power, rows in each.by_power.items():
                by_left.setdefault((each.shorter / each.longer) ** power, []).extend(rows)
    shares = added_up(calls.shares(rows, left) for left, rows in by_left.items())
    return LongGrams(calls.per_step(counted), shares)


@dataclass(frozen=True)
class _Found:
    """``by_power``: rows of operators by the power of shorter over longer side of which is left."""

    longer: int
    shorter: int
    again: bool
    by_power: dict[int, list[int]]

    @property
    def rows(self) -> list[int]:
        return [row for rows in self.by_power.values() for row in rows]


def _gram(calls: Calls, rows: list[int], at: int) -> _Found | None:
    """What the product there begins, if it is of a matrix with the transpose of one like it, along its longer side."""
    sides = _sides(calls, rows[at])
    if sides is None:
        return None
    (longer, shorter), right = sides
    if right != (shorter, longer) or longer < LEAST_ROWS or longer < LEAST_RATIO * shorter:
        return None
    turned = (calls.shapes(row) for row in rows[max(0, at - 2) : at] if calls.name(row) in _VIEWS)
    if not any(each and each[0][-2:] in ((longer, shorter), right) for each in turned):
        return None
    by_power: dict[int, list[int]] = {1: [rows[at]], 2: [], 3: []}
    square = (longer, longer)
    for distance, row in enumerate(rows[at + 1 : at + 1 + _FARTHEST], 1):
        shapes = [each for each in calls.shapes(row) if each]
        name, product = calls.name(row), _sides(calls, row)
        if name in _VIEWS:
            continue
        if product == (square, square):
            by_power[3].append(row)
        elif product is not None and product in ((square, (longer, shorter)), ((shorter, longer), square)):
            if distance == 1:  # a chain of three, which product-order puts parentheses around
                return None
            return _Found(longer, shorter, True, by_power | {1: [rows[at], row]})
        elif name in _SCALES and len(shapes) > 1:  # a mask, say
            break
        elif name in _LINEAR and all(each[-2:] in (square, (longer, shorter), (shorter, longer)) for each in shapes):
            by_power[2] += [row] if square in (each[-2:] for each in shapes) else []
        else:
            break
    if by_power[3]:
        return None
    looked_at = rows[at + 1 : at + 1 + _PENALTY]
    by_power[2] = [row for row in looked_at if square in (each[-2:] for each in calls.shapes(row))]
    return _Found(longer, shorter, False, by_power)


def _sides(calls: Calls, row: int) -> tuple[Shape, Shape] | None:
    """Rows and columns of both matrices that are multiplied there, of as many of each; None where none are."""
    shapes = calls.shapes(row) if calls.name(row) in _PRODUCTS else []
    if len(shapes) < 2 or min(len(each) for each in shapes[:2]) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        return None
    return shapes[0][-2:], shapes[1][-2:]
