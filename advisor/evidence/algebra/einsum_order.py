"""``torch.einsum`` of three operands and more, which PyTorch multiplies from left to right, two at a time.

Told by the operator's own calls in the window with shapes: it puts the dimensions of each operand into one order
(ATen/native/Linear.cpp: one ``permute`` for each, before the first product), with a one for each that it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.algebra.product_order import FLOP_PER_NUMBER, LEAST
from advisor.evidence.by_function import Calls, Function
from advisor.evidence.worked import NODE, added_up

if TYPE_CHECKING:
    from advisor.edit.algebra.einsums import Einsum
    from advisor.evidence import Evidence

# Of the work of an einsum what goes with the operations: products, and the sums and copies of what goes in.
_WORK = frozenset(f"aten::{name}" for name in ("bmm", "mm", "mul", "sum", "copy_"))
_PERMUTES = "PermuteBackward"


@dataclass(frozen=True)
class Costly:
    """A call in `function`, and the `order` of its operands in which it takes fewest operations, `times` fewer."""

    function: Function
    written: Einsum
    order: tuple[int, ...]
    times: float


@dataclass
class Einsums:
    """Those that take too many operations: how often in a step, and operator → share of its own time that would go."""

    counts: dict[Costly, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def costly_einsums(evidence: Evidence, written: Callable[[Function], Sequence[Einsum]]) -> Einsums:
    """Those of the steps; `written` gives the ones that stand in a function.

    None where PyTorch finds the order itself (with opt_einsum, which it then has imported), and of calls that may be
    one or another of those in the source, or that were given operands of different sizes.
    """
    calls, record, found = evidence.calls, evidence.record, Einsums()
    if calls is None or record is None or "opt_einsum" in record.environment.packages:
        return found
    rows = [row for thread in calls.threads for row in thread if calls.name(row) == "aten::einsum"]
    functions = calls.functions(evidence, rows)
    seen: dict[tuple[Function, Einsum], list[tuple[int, tuple[float, tuple[int, ...], float]]]] = {}
    for row in rows:
        function = functions.get(row)
        operands = _operands(calls, row)
        if function is None or not operands:
            continue
        fitting = [(each, known) for each in written(function) if (known := _sizes(each, operands)) is not None]
        if len(fitting) != 1:
            continue
        each, sizes = fitting[0]
        trained = tuple(trains for _, trains in operands[: len(each.terms)])
        seen.setdefault((function, each), []).append((row, _best(each, sizes, trained)))
    costly: list[Costly] = []
    shares = []
    for (function, each), measured in seen.items():
        orders = {order for _, (_, order, _) in measured}
        if len(orders) != 1 or any(now < LEAST * best for _, (best, _, now) in measured):
            continue
        for row, (best, order, now) in measured:
            costly.append(Costly(function, each, order, round(now / best, 1)))
            shares.append(calls.shares([row], best / now))
    found.counts = calls.per_step(costly)
    found.shares = {name: share for name, share in added_up(shares).items() if name in _WORK}
    return found


def _operands(calls: Calls, row: int) -> list[tuple[tuple[int, ...], bool]]:
    """The shape of each operand of an einsum, and whether the backward goes on through it; more may follow them."""
    trace = calls.trace
    operators = trace.operators
    inside = (operators.start >= operators.start[row]) & (operators.end <= operators.end[row])
    inside &= (operators.lane == operators.lane[row]) & (calls.nesting.parent == row)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(operators.start[rows], kind="stable")].tolist()
    nodes = {
        int(operators.sequence[node])
        for node in calls.nodes([row])
        if trace.name(int(operators.name[node])).startswith(f"{NODE}: {_PERMUTES}")
    }
    # What records no node carries the number of the next one that does: whose a number is says the last of them.
    last = {int(operators.sequence[each]): each for each in rows}
    return [
        (tuple(calls.shapes(each)[0]), last[number] == each and number in nodes)
        for each in rows
        if calls.name(each) == "aten::permute" and calls.shapes(each)
        for number in [int(operators.sequence[each])]
    ]


def _sizes(written: Einsum, operands: list[tuple[tuple[int, ...], bool]]) -> dict[str, int] | None:
    """The size of each label, if those operands may be these."""
    labels, sizes = set("".join(written.terms)), dict[str, int]()
    if len(operands) < len(written.terms):
        return None
    for term, (shape, _) in zip(written.terms, operands, strict=False):
        if len(shape) != len(labels) or any(size != 1 for size in shape[len(term) :]):
            return None
        for label, size in zip(term, shape, strict=False):
            if sizes.setdefault(label, size) != size or not size:
                return None
    return sizes


def _best(written: Einsum, sizes: dict[str, int], trained: tuple[bool, ...]) -> tuple[float, tuple[int, ...], float]:
    """(cost, order) of the cheapest order of the operands from left to right, and the cost of the present one."""
    number = len(written.terms)
    # Of orders that cost the same the one that is nearest to what is written.
    ways = [(_cost(written, order, sizes, trained), order) for order in permutations(range(number))]
    best, order = min(ways)
    return best, order, ways[0][0]


def _cost(written: Einsum, order: tuple[int, ...], sizes: dict[str, int], trained: tuple[bool, ...]) -> float:
    """Operations of all products in that order, with their backward's, and what reading and writing is worth."""
    total, left, trains = 0.0, set(written.terms[order[0]]), trained[order[0]]
    for at, each in enumerate(order[1:], 1):
        right = set(written.terms[each])
        needed = set(written.result).union(*(written.terms[later] for later in order[at + 1 :]))
        made = (left | right) & needed
        numbers = sum(prod(sizes[label] for label in part) for part in (left, right, made))
        once = 2.0 * prod(sizes[label] for label in left | right) + FLOP_PER_NUMBER * numbers
        total += once * (1 + trains + trained[each])
        left, trains = made, trains or trained[each]
    return total
