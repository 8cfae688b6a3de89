"""Operators by the function of the user's that calls them, with what they call and what the backward does for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import Shape, given_values, input_shapes, input_types
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import NODE, added_up, self_shares

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints, Trace

T = TypeVar("T")

COPIES_PART = "CopySlices"  # the node of ``x[i] = y``, as its name ends

Function = tuple[str, int]
"""A function of the user's: its file and its first line, 0 outside of all."""


@dataclass(frozen=True)
class Called:
    """One call of an operator in the window with shapes: its row there, and what is behind it in the same thread."""

    row: int
    name: str
    shapes: list[Shape]
    after: list[int]  # rows of the outermost operators right behind it, in order


class Calls:
    """The outermost operators of the detail window's steps, outside of the backward, by thread and in order.

    Those of the optimizers are aside, too, without `optimizers`.
    """

    def __init__(self, trace: Trace, optimizers: bool = False) -> None:
        self.trace, self.nesting, self.steps = trace, Nesting(trace), step_windows(trace)
        operators = trace.operators
        self._step = assign(self.steps, operators.start)
        self._in_steps = self._step >= 0
        host = Host(trace, self.steps)
        aside = host.backward if optimizers else host.backward.union(host.optimizer)
        outer = np.flatnonzero(self._in_steps & (self.nesting.parent < 0) & ~aside.contains(operators.start))
        lanes: list[Ints] = [outer[operators.lane[outer] == lane] for lane in np.unique(operators.lane[outer])]
        self.threads = [rows[np.argsort(operators.start[rows], kind="stable")].tolist() for rows in lanes]

    def named(self, names: Collection[str], after: int) -> Iterator[Called]:
        """The calls of these operators, each with so many of those behind it."""
        for rows in self.threads:
            for at, row in enumerate(rows):
                name = self.name(row)
                if name in names:
                    yield Called(row, name, self.shapes(row), rows[at + 1 : at + 1 + after])

    def per_step(self, each: Iterable[T]) -> dict[T, float]:
        """How often in a step each of these is there, one for a call."""
        return {one: times / len(self.steps) for one, times in Counter(each).items()}

    def name(self, row: int) -> str:
        return self.trace.name(int(self.trace.operators.name[row]))

    def names_in(self, rows: Ints) -> frozenset[str]:
        """The names of the operators that run from the first of these rows to the last one, themselves included."""
        operators, first, last = self.trace.operators, rows[0], rows[-1]
        inside = (operators.start >= operators.start[first]) & (operators.end <= operators.end[last])
        inside &= operators.lane == operators.lane[first]
        return frozenset(self.trace.name(code) for code in np.unique(operators.name[inside]).tolist())

    def step(self, row: int) -> int:
        """Which of the window's steps it is in."""
        return int(self._step[row])

    def shapes(self, row: int) -> list[Shape]:
        """Of its inputs; empty where they are not known."""
        code = int(self.trace.operators.shapes[row])
        return input_shapes(self.trace.name(code)) if code >= 0 else []

    def dtype(self, row: int) -> str:
        """Of its first input, as C++ calls it: "float", "long int"; "" where it is not known."""
        code = int(self.trace.operators.dtypes[row])
        return input_types(self.trace.name(code))[0] if code >= 0 else ""

    def values(self, row: int) -> list[str]:
        """Its inputs that are no tensors, as text, in their places; empty where they are not known."""
        return given_values(self.trace, row)

    def lasted_ns(self, row: int) -> int:
        """How long a call took, with all that it calls."""
        return int(self.trace.operators.end[row] - self.trace.operators.start[row])

    def numbers(self, row: int) -> list[int]:
        """Autograd's numbers that a call and what it calls carry; none where no graph is recorded."""
        found = self.trace.operators.sequence[self.within([row])]
        return [int(each) for each in found[found >= 0]]

    def functions(self, evidence: Evidence, rows: Collection[int]) -> dict[int, Function]:
        """Which function of the user's each of them is called in; those that are in none are left out."""
        if evidence.record is None or not rows:
            return {}
        return users_functions(self.trace, np.array(sorted(rows), np.int64), evidence.record)

    def shares(self, rows: Collection[int], left: float, left_backward: float | None = None) -> dict[str, float]:
        """Operator → share of its own time that goes with these calls, of which `left` stays.

        With what they call and their backward; of that `left_backward` stays, if that is another part.
        """
        parts = (
            (self.within(rows), left),
            (self.within(self.nodes(rows)), left if left_backward is None else left_backward),
        )
        return added_up(
            {name: share * (1.0 - stays) for name, share in self._self_shares(inside).items()}
            for inside, stays in parts
        )

    def _self_shares(self, inside: Mask) -> dict[str, float]:
        return self_shares(self.trace, self.nesting, inside, self._in_steps)

    def nodes(self, rows: Collection[int]) -> list[int]:
        """The nodes of the backward that these calls have recorded.

        A call that records none carries the number of the next one that does: whose a number is says the last call.
        """
        return [node for row in rows for node in self._recorded.get(row, ())]

    def recorder(self, node: int) -> int | None:
        """The outermost call that has recorded a node; one that writes into a part has the number before its node's."""
        operators = self.trace.operators
        number = int(operators.sequence[node])
        copies = self.name(node).endswith(COPIES_PART)
        return self._owners.get(number - 1 if copies else number)

    def inside(self, row: int, names: Collection[str]) -> int:
        """How many operators of these names a row has in it, itself included."""
        inside = self.within([row])
        return int((inside & names_like(self.trace, self.trace.operators.name, names.__contains__)).sum())

    @cached_property
    def _recorded(self) -> dict[int, list[int]]:
        """The outermost call → the nodes of the backward that it has recorded."""
        operators = self.trace.operators
        named = names_like(self.trace, operators.name, lambda name: name.startswith(NODE))
        found: dict[int, list[int]] = {}
        for node in np.flatnonzero(named & self._in_steps & (operators.sequence >= 0)).tolist():
            owner = self.recorder(node)
            if owner is not None:
                found.setdefault(owner, []).append(node)
        return found

    @cached_property
    def _owners(self) -> dict[int, int]:
        """Number → the outermost call, the last of those that carry it in themselves or in what they call."""
        operators, found = self.trace.operators, dict[int, int]()
        for rows in self.threads:
            if not rows:
                continue
            outer = np.array(rows, np.int64)
            own = np.flatnonzero((operators.lane == operators.lane[outer[0]]) & (operators.sequence >= 0))
            own = own[np.argsort(operators.start[own], kind="stable")]
            at = np.searchsorted(operators.start[outer], operators.start[own], side="right") - 1
            within = (at >= 0) & (operators.end[own] <= operators.end[outer[at]])
            found.update(zip(operators.sequence[own[within]].tolist(), outer[at[within]].tolist(), strict=True))
        return found

    def within(self, rows: Collection[int]) -> Mask:
        """The operators `rows` and those that they call."""
        operators, those = self.trace.operators, np.array(sorted(rows), np.int64)
        inside = np.zeros(len(operators), np.bool_)
        for lane in np.unique(operators.lane[those]):
            own = those[operators.lane[those] == lane]
            covered = Coverage.of(operators.start[own], operators.end[own])
            last = np.maximum(operators.end - 1, operators.start)  # what begins with it may go on behind it
            inside |= (operators.lane == lane) & covered.contains(operators.start) & covered.contains(last)
        inside[those] = True
        return inside
