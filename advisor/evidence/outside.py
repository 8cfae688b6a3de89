"""Where the time of a step goes that is neither loading nor forward, backward or optimizer."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from advisor.evidence.coded import Mask
from advisor.evidence.facts import Steps
from advisor.evidence.host import Host
from advisor.evidence.steps import assign
from advisor.trace import intervals
from advisor.trace.tables import Ints, Trace

# A Python function as the profiler writes it: "train.py(12): validate"; where it runs, for one that ran before.
_WRITTEN = re.compile(r"(?P<file>[^()]*)\((?P<line>\d+)\): (?P<own>.+)|<built-in (?:function|method) (?P<built_in>\w+)")

_OURS = "advisor/harness/"  # a wrapper of the harness's is no call of the user's


@dataclass(frozen=True)
class Outside:
    """A function of the user's, ``file`` and ``line`` of its definition, and the seconds per traced step in it.

    ``called``: what takes the time there, where the function itself is the loop over steps; else "".
    """

    name: str
    file: str
    line: int
    called: str
    seconds: float

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}"
        return f"{self.called}, called in {self.name} ({place})" if self.called else f"{self.name} ({place})"


def longest_outside(detail: Trace, steps: Steps, files: Collection[str]) -> Outside | None:
    """The user's function (in one of `files`) that takes most of the steps beside the step's own work.

    By the stacks of `detail`. None where it has none, or nothing of the kind.
    """
    python = detail.python
    inside = np.flatnonzero((python.lane == steps.lane) & (python.end > python.start))
    rows = inside[np.lexsort((-python.end[inside], python.start[inside]))]
    if not len(rows):
        return None
    start, end = python.start[rows], python.end[rows]
    parent = intervals.parents(start, end)
    host = Host(detail, steps)
    holds = _holds(host, start, end)
    own = host.loader.union(host.backward).union(host.optimizer).union(host.forward)
    free = ~holds & (assign(steps, start) >= 0) & ~own.contains(start)
    names = [_WRITTEN.match(detail.name(int(code))) for code in python.name[rows]]
    users = [each is not None and each["file"] in files and each["own"] != "<module>" for each in names]
    # Rows come in the order of their calls. Each belongs to the outermost call around it that is free; what a function
    # of the user's takes in there is its own, and the rest its caller's.
    top = np.full(len(rows), -1, np.int64)
    counted = np.zeros(len(rows), np.bool_)
    rest: dict[int, int] = {}
    taken: dict[tuple[str, int, str, str], int] = {}
    for row in np.flatnonzero(free).tolist():
        outer, took = int(parent[row]), int(end[row] - start[row])
        inner = outer >= 0 and bool(free[outer])
        top[row] = top[outer] if inner else row
        if not inner:
            rest[row] = took
        counted[row] = users[row] or (inner and counted[outer])
        if users[row] and not (inner and counted[outer]):
            rest[int(top[row])] -= took
            place = _place(names, users, parent, row)
            if place is not None:
                taken[place] = taken.get(place, 0) + took
    for row, took in rest.items():
        place = _place(names, users, parent, row)
        if place is not None:
            taken[place] = taken.get(place, 0) + took
    if not taken:
        return None
    file, line, name, called = max(taken, key=lambda each: taken[each])
    return Outside(name, file, line, called, max(taken.values()) / 1e9 / max(1, len(steps)))


def _holds(host: Host, start: Ints, end: Ints) -> Mask:
    """Which spans hold the step's own work: what the backward works on, the backward, the optimizer, the loader."""
    operators = host.trace.operators.start[host.graph_rows]
    moments = np.sort(
        np.concatenate((operators, host.forward.start, host.backward.start, host.optimizer.start, host.loader.start))
    )
    return np.asarray(np.searchsorted(moments, end) > np.searchsorted(moments, start))


def _up(parent: Ints, row: int) -> Iterator[int]:
    """`row` and what it was called from, farther and farther out."""
    while row >= 0:
        yield row
        row = int(parent[row])


def _place(
    names: list[re.Match[str] | None], users: list[bool], parent: Ints, row: int
) -> tuple[str, int, str, str] | None:
    """(file, line, name, what it calls) of the innermost function of the user's that `row` is, or is called from."""
    called = ""
    for each in _up(parent, row):
        match = names[each]
        if match is not None and users[each]:
            return match["file"], int(match["line"]), match["own"], called
        called = called or _called(names, parent, each)
    return None


def _called(names: list[re.Match[str] | None], parent: Ints, row: int) -> str:
    """The name of a function; of a wrapper of the harness's that of what it wraps."""
    match = names[row]
    while match is not None and _OURS in (match["file"] or "") and row + 1 < len(parent) and parent[row + 1] == row:
        row += 1
        match = names[row]
    return (match["own"] or match["built_in"]) if match is not None else ""
