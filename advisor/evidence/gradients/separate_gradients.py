"""Gradients of one thing by several inputs that are asked for one after another: each goes back through all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import NODE
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import callers_of_each
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import Steps
    from advisor.trace.tables import Ints, Trace

_FILE, _ASKS = "torch/autograd/__init__.py", ("grad", "backward")
# Nodes that a call may have to itself in front of what it shares: torch.autograd.grad(u.sum(), x) sums anew each time.
_REDUCES = ("SumBackward0", "SumBackward1", "MeanBackward0", "MeanBackward1")


@dataclass(frozen=True)
class SeparateGradients:
    """``calls`` of a step that ask for gradients of what another call has asked of, too; ``groups`` of such calls.

    ``shares``: operator → share of its own time in the steps that goes where each group asks once. ``callers``: the
    user's functions that ask, the innermost first, of the first of them: file and first line. ``asking``: how many of
    the calls a function is around, by these two.
    """

    calls: float
    groups: float
    shares: dict[str, float]
    callers: tuple[tuple[str, int], ...]
    asking: dict[tuple[str, int], float]


@dataclass(frozen=True)
class _Pass:
    """A call of ``grad`` or ``backward``: rows of its nodes, their numbers, and all operators in it."""

    step: int
    asks: bool
    nodes: Ints
    numbers: Ints
    inside: Ints

    @property
    def root(self) -> int:
        """The number of the first node."""
        return int(self.numbers[0])


def separate_gradients(evidence: Evidence) -> SeparateGradients | None:
    """What a step's gradients do again that one call for all inputs would do once, by the window with stacks."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return None
    steps, nesting = step_windows(trace), Nesting(trace)
    passes = _passes(trace, nesting, Stacks.of(trace, steps.lane), steps)
    groups: dict[tuple[int, int], list[_Pass]] = {}
    for each in passes:
        if each.asks:
            groups.setdefault((each.step, _root(trace, each, passes)), []).append(each)
    return _of_groups(evidence, trace, steps, nesting, passes, groups)


def asked_again(evidence: Evidence) -> SeparateGradients | None:
    """The same of calls that give what an earlier one has given, as the run has seen in a few steps.

    The trace knows them by their order: a step has to ask as often there.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or record.asked_again is None or not len(trace.operators):
        return None
    before, steps, nesting = record.asked_again.before, step_windows(trace), Nesting(trace)
    passes = _passes(trace, nesting, Stacks.of(trace, steps.lane), steps)
    groups: dict[tuple[int, int], list[_Pass]] = {}
    for step in range(len(steps)):
        asking = [each for each in passes if each.asks and each.step == step]
        if len(asking) != len(before):
            return None
        for number, (each, earlier) in enumerate(zip(asking, before, strict=True)):
            groups.setdefault((step, number if earlier < 0 else earlier), []).append(each)
    return _of_groups(evidence, trace, steps, nesting, passes, groups)


def _of_groups(
    evidence: Evidence,
    trace: Trace,
    steps: Steps,
    nesting: Nesting,
    passes: list[_Pass],
    groups: dict[tuple[int, int], list[_Pass]],
) -> SeparateGradients | None:
    """What goes where each of the `groups` asks once."""
    record = evidence.record
    several = [group for group in groups.values() if len(group) > 1]
    if not several or record is None:
        return None
    part = np.zeros(len(trace.operators))
    for group in several:
        _add(trace, group, passes, part)
    callers = callers_of_each(trace, [int(each.nodes[0]) for group in several for each in group], record)
    asking = Counter(function for each in callers for function in set(each))
    return SeparateGradients(
        calls=sum(map(len, several)) / len(steps),
        groups=len(several) / len(steps),
        shares=self_shares(trace, nesting, part, assign(steps, trace.operators.start) >= 0),
        callers=tuple(callers[1]),
        asking={function: number / len(steps) for function, number in asking.items()},
    )


def _passes(trace: Trace, nesting: Nesting, stacks: Stacks, steps: Steps) -> list[_Pass]:
    operators = trace.operators
    is_node = names_like(trace, operators.name, lambda name: name.startswith(NODE)) & (operators.sequence >= 0)
    nodes = np.flatnonzero(is_node & (nesting.parent < 0))
    nodes = nodes[np.argsort(operators.start[nodes], kind="stable")]
    begun = operators.start[nodes]
    calls = [each.name in _ASKS and each.path.endswith(_FILE) for each in stacks.functions]
    found = []
    for row, function in enumerate(stacks.functions):
        # A call of another thing's may be made within: what overrides a function for its tensors calls it again.
        if not calls[row] or any(calls[outer] for outer in stacks.up(int(stacks.parent[row]))):
            continue
        first, last = np.searchsorted(begun, (stacks.start[row], stacks.end[row]))
        rows = nodes[first:last]
        step = int(assign(steps, stacks.start[row : row + 1])[0])
        if step < 0 or not len(rows):
            continue
        within = (operators.start >= stacks.start[row]) & (operators.end <= stacks.end[row])
        inside = np.flatnonzero(within & (operators.lane == operators.lane[rows[0]]))
        found.append(_Pass(step, function.name == "grad", rows, operators.sequence[rows], inside))
    return found


def _root(trace: Trace, one: _Pass, passes: list[_Pass]) -> int:
    """The number of the first node that is no sum of its own."""
    others = [each.numbers for each in passes if each is not one and each.step == one.step and each.asks]
    known = set(np.concatenate(others).tolist()) if others else set()
    for row, number in zip(one.nodes.tolist(), one.numbers.tolist(), strict=True):
        name = trace.name(int(trace.operators.name[row])).removeprefix(NODE)
        if int(number) in known or name not in _REDUCES:
            return int(number)
    return one.root


def _add(trace: Trace, group: list[_Pass], passes: list[_Pass], part: NDArray[np.float64]) -> None:
    """Mark what goes where the group asks once: nodes that it computes again, and later ones for what these made.

    `part` is how much of each operator's time goes.
    """
    operators = trace.operators
    seen: set[int] = set()
    made: list[Ints] = []
    for each in group:
        again = np.array([int(number) in seen for number in each.numbers.tolist()], np.bool_)
        seen.update(each.numbers.tolist())
        part[_within(trace, each.inside, each.nodes[again])] = 1.0
        plain = each.inside[
            names_like(trace, operators.name[each.inside], lambda name: name.startswith("aten::"))
            & (operators.sequence[each.inside] >= 0)
        ]
        made.append(np.unique(operators.sequence[plain]))
    for later in passes:
        if later.step != group[0].step or later.nodes[0] <= group[-1].nodes[-1]:
            continue
        rows = [later.nodes[np.isin(later.numbers, numbers)] for numbers in made]
        spent = [int((operators.end[each] - operators.start[each]).sum()) for each in rows]
        total = sum(spent)
        if total:
            all_rows = np.unique(np.concatenate(rows))
            part[_within(trace, later.inside, all_rows)] = 1.0 - max(spent) / total


def _within(trace: Trace, inside: Ints, nodes: Ints) -> Ints:
    """The rows of `inside` that are in one of the `nodes`, which follow one another."""
    operators = trace.operators
    if not len(nodes):
        return nodes
    at = np.searchsorted(operators.start[nodes], operators.start[inside], side="right") - 1
    held = (at >= 0) & (operators.end[inside] <= operators.end[nodes[np.maximum(at, 0)]])
    return inside[held]
