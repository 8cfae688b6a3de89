"""Loops in Python that look one column after another up, each in a table of its own: the fields of a click model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.by_function import Calls, Function
from advisor.evidence.gradients.backwards import backward_s
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_callers
from advisor.evidence.python_loops.module_loops import loops_over_modules
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from advisor.evidence import Evidence
    from advisor.evidence.facts import OperatorRow

LEAST_FIELDS = 8  # tables of one loop: of fewer little is won
# Where the operator has its indices, what says how many rows come out of it, and whether its gradients are sparse
# (native_functions.yaml: (weight, indices, padding_idx, …) and (weight, indices, offsets, …)).
_LOOKUPS = {"aten::embedding": (1, 1, 4), "aten::embedding_bag": (1, 2, 5)}
_MODE = 4  # of a bag: sum, mean or max
# What may stand between two lookups: the column is taken, and the row that came out is added up or put into shape.
_BETWEEN = frozenset(
    f"aten::{name}"
    for name in ("select", "slice", "squeeze", "unsqueeze", "view", "reshape", "flatten", "to", "add", "add_",
                 "contiguous", "alias", "detach", "is_pinned")
)  # fmt: skip
_MOST_BETWEEN = 6
# Seconds that stay when one call does it for all, torch 2.14, one thread with AVX-512, tables of 1 to 32 columns:
# for each row that is looked up (6,656 in 54 us), for each whose gradient is added (6,656 in 636 us, 12,288 in 1,230
# us), and for each number of a dense gradient, which is filled with zeros (2.1 million in 500 us).
_ROW_S, _GRADIENT_ROW_S, _ZERO_S = 10e-9, 95e-9, 0.25e-9
_ADDS = "aten::embedding_dense_backward"
_ACCUMULATES = (
    "torch::autograd::AccumulateGrad",
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
)


@dataclass(frozen=True)
class FieldTables:
    """The loops of a step, of which the longest is at ``site`` and looks up in ``tables`` tables of ``width`` columns.

    ``seconds``: of an untraced step, with their backward; ``stays_s``: of these, what one call for each loop takes.
    """

    site: Site
    tables: int
    width: int
    lookups: int
    bags: bool
    seconds: float
    stays_s: float


@dataclass(frozen=True)
class _Group:
    """One run of a loop: the numbers of its first and last lookup among those of the step, and its rows."""

    first: int
    last: int
    rows: list[int]
    width: int
    bags: bool

    @property
    def tables(self) -> int:
        return self.last - self.first + 1


def field_tables(evidence: Evidence, text_of: Callable[[str], str]) -> FieldTables | None:
    """The loops over tables of one width of which each is given a column of its own, as the source has them.

    None where a step's lookups are not the same in both windows. `text_of` gives a file's text, "" where there is none.
    """
    calls, trace = evidence.calls, evidence.trace
    if calls is None or trace is None or evidence.device_is_gpu:
        return None
    timed = Calls(trace)
    shown, seen = _lookups(calls), _lookups(timed)
    if not shown or not seen or {len(each) for each in shown} != {len(shown[0])} != {0}:
        return None
    if {len(each) for each in seen} != {len(shown[0])}:
        return None
    found = _groups(evidence, calls, shown[0], text_of)
    if not found:
        return None
    nesting, stays, spent = Nesting(trace), 0.0, dict.fromkeys(range(len(found)), 0.0)
    adding = evidence.operators.row(_ADDS)
    accumulating = [row for row in map(evidence.operators.row, _ACCUMULATES) if row is not None]
    for number, (_, group) in enumerate(found):
        trained = bool(calls.nodes(group.rows))
        for step in seen:
            inside = _between(timed, step[group.first], step[group.last])
            operators = trace.operators
            forward = int(operators.end[inside[-1]] - operators.start[inside[0]]) / 1e9
            forward *= group.tables / (group.tables - 1)  # what comes before the first lookup is not in it
            spent[number] += (forward + backward_s(trace, nesting, inside)) / len(seen)
        if trained:
            spent[number] += sum(row.self_s * min(1.0, group.tables / row.count) for row in accumulating if row.count)
        stays += _stays_s(calls, group, trained, adding)
    longest = max(spent, key=lambda number: spent[number])
    site, group = found[longest]
    seconds = sum(spent.values()) / evidence.inflation
    lookups = sum(each.tables for _, each in found)
    return FieldTables(site, group.tables, group.width, lookups, group.bags, seconds, min(stays, seconds))


def _lookups(calls: Calls) -> list[list[int]]:
    """The rows of each step's lookups, in order; [] where several threads have some."""
    threads = [rows for rows in calls.threads if any(calls.name(row) in _LOOKUPS for row in rows)]
    if len(threads) != 1:
        return []
    found: list[list[int]] = [[] for _ in range(len(calls.steps))]
    for row in threads[0]:
        if calls.name(row) in _LOOKUPS:
            found[calls.step(row)].append(row)
    return found


def _groups(
    evidence: Evidence, calls: Calls, lookups: list[int], text_of: Callable[[str], str]
) -> list[tuple[Site, _Group]]:
    """The runs of one loop each, with its place; none of a function whose loops cannot be told apart."""
    functions = calls.functions(evidence, lookups)
    by_loops: dict[tuple[str, tuple[int, ...]], list[_Group]] = {}
    for group in _runs(calls, lookups, functions):
        place = _loops(evidence, calls, group.rows[0], text_of)
        if place is not None:
            by_loops.setdefault(place, []).append(group)
    found = []
    for (path, loops), groups in by_loops.items():
        if len(loops) in (1, len(groups)):
            places = loops if len(loops) == len(groups) else loops * len(groups)
            found += [(Site(path, line), group) for line, group in zip(places, groups, strict=True)]
    return found


def _loops(
    evidence: Evidence, calls: Calls, row: int, text_of: Callable[[str], str]
) -> tuple[str, tuple[int, ...]] | None:
    """File and lines of the loops over modules in the innermost function around a lookup that has some.

    A comprehension is a function of its own until Python 3.11, which begins at its line.
    """
    if evidence.record is None:
        return None
    before = ("", 0)
    for path, line in users_callers(calls.trace, row, evidence.record):
        loops = loops_over_modules(text_of(path), line)
        if loops:
            own = before[0] == path and before[1] in loops
            return path, (before[1],) if own else tuple(loops)
        before = path, line
    return None


def _runs(calls: Calls, lookups: list[int], functions: dict[int, Function]) -> Iterator[_Group]:
    """Lookups of the same kind and width in one function, with next to nothing between them."""
    run: list[int] = []
    for number, row in enumerate(lookups):
        if run and not (
            _kind(calls, row) == _kind(calls, lookups[run[-1]]) is not None
            and functions.get(row) == functions.get(lookups[run[-1]])
            and _near(calls, lookups[run[-1]], row)
        ):
            yield from _group(calls, lookups, run, functions)
            run = []
        run.append(number)
    yield from _group(calls, lookups, run, functions)


def _group(calls: Calls, lookups: list[int], run: list[int], functions: dict[int, Function]) -> Iterator[_Group]:
    if len(run) < LEAST_FIELDS or _kind(calls, lookups[run[0]]) is None or lookups[run[0]] not in functions:
        return
    rows = [lookups[each] for each in run]
    name = calls.name(rows[0])
    yield _Group(run[0], run[-1], rows, calls.shapes(rows[0])[0][1], name == "aten::embedding_bag")


def _kind(calls: Calls, row: int) -> Hashable | None:
    """What lookups that one call could do for all have in common; None for one that is not to be joined."""
    name, shapes, values = calls.name(row), calls.shapes(row), calls.values(row)
    _, gives, sparse = _LOOKUPS[name]
    if len(shapes) <= gives or len(shapes[0]) != 2 or len(values) <= sparse or values[sparse] == "True":
        return None
    return name, shapes[0][1], shapes[gives], values[_MODE] if name == "aten::embedding_bag" else ""


def _near(calls: Calls, row: int, other: int) -> bool:
    between = _between(calls, row, other)[1:-1]
    return len(between) <= _MOST_BETWEEN and all(calls.name(each) in _BETWEEN for each in between.tolist())


def _between(calls: Calls, first: int, last: int) -> np.ndarray:
    """The outermost operators of a thread from one to another, both included."""
    rows = next(each for each in calls.threads if first in each)
    return np.array(rows[rows.index(first) : rows.index(last) + 1], np.int64)


def _stays_s(calls: Calls, group: _Group, trained: bool, adding: OperatorRow | None) -> float:
    """Seconds that looking all of them up at once takes; the gradients of rows are added in no more than it takes now.

    `adding`: the operator that adds them.
    """
    indices, _, _ = _LOOKUPS[calls.name(group.rows[0])]
    rows = sum(int(np.prod(calls.shapes(row)[indices])) for row in group.rows)
    numbers = sum(int(np.prod(calls.shapes(row)[0])) for row in group.rows)
    if not trained:
        return rows * _ROW_S
    gradients = rows * _GRADIENT_ROW_S + numbers * _ZERO_S
    if adding is not None and adding.count:
        gradients = min(gradients, adding.self_s * min(1.0, group.tables / adding.count))
    return rows * _ROW_S + gradients
