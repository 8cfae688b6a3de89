"""Products of matrices of which only the diagonal is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Called, Function
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_PRODUCTS = ("aten::matmul", "aten::mm")
_DIAGONALS = ("aten::trace", "aten::diag", "aten::diagonal", "aten::diagonal_copy", "aten::linalg_diagonal")
_LEAST = 32  # rows: of smaller ones calling takes the time
# Of n rows by n columns of numbers that are multiplied, and added up, n remain, each with what two readings take more
# than a product's multiplications do: 6 to 48 of them, forward and backward, measured with torch 2.14 on one core and
# on two with AVX-512, 64 to 1000 rows of 32 to 256 numbers.
_EACH = 30.0


@dataclass(frozen=True)
class Diagonal:
    """Products in ``function`` of ``rows`` by ``inner`` numbers, whose diagonal is taken."""

    function: Function
    rows: int
    inner: int


def diagonal_products(
    evidence: Evidence, products: Callable[[Function], int]
) -> tuple[dict[Diagonal, float], dict[str, float]]:
    """Such products per step; operator → share of its own time that goes where rows are multiplied instead.

    `products` says of how many products a function takes its one diagonal, 0 where it takes several, or others: these
    are the last so many before it.
    """
    calls = evidence.calls
    if calls is None:
        return {}, {}
    square = {each.row: size for each in calls.named(_PRODUCTS, 0) if (size := _size(each)) is not None}
    taken = {each.row for each in calls.named(_DIAGONALS, 0)}
    functions = calls.functions(evidence, [*square, *taken])
    known: dict[int, Diagonal] = {}
    behind: dict[int, Diagonal] = {}  # what takes the diagonals
    for rows in calls.threads:
        made: list[int] = []  # products that no diagonal was taken behind so far
        for row in rows:
            if row in square and row in functions:
                made.append(row)
            elif row in taken and row in functions:
                function, shape = functions[row], (calls.shapes(row) or [()])[0]
                there = [each for each in made if functions[each] == function and shape == (square[each][0],) * 2]
                made = [each for each in made if functions[each] != function]
                number = products(function)
                for each in there[-number:] if 0 < number <= len(there) else ():
                    known[each] = Diagonal(function, *square[each])
                    behind[row] = known[each]  # whose backward fills a whole matrix
    by_size: dict[float, list[int]] = {}
    for row, product in (*known.items(), *behind.items()):
        by_size.setdefault(min(1.0, _EACH / product.rows), []).append(row)
    return calls.per_step(known.values()), added_up(calls.shares(rows, left) for left, rows in by_size.items())


def _size(call: Called) -> tuple[int, int] | None:
    """(rows, inner numbers) of a square product of two matrices; None of any other."""
    if len(call.shapes) < 2 or len(call.shapes[0]) != 2 or len(call.shapes[1]) != 2:
        return None
    (rows, inner), (_, columns) = call.shapes[0], call.shapes[1]
    return (rows, inner) if rows == columns and rows >= _LEAST else None
