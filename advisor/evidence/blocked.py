"""What else is done in the calls that wait for something outside of the process: packing, formatting, writing."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.host import Host
from advisor.evidence.steps import assign
from advisor.harness.layout import Site
from advisor.trace import intervals
from advisor.trace.tables import Ints, Trace

# The profiler's names of a Python function: "log.py(12): record", "<built-in function sleep>", "<built-in method recv
# of _socket.socket object at 0x…>" (torch/csrc/autograd/profiler_python.cpp).
_WRITTEN = re.compile(r"(?P<file>[^()]*)\((?P<line>\d+)\): (?P<own>.+)|<built-in (?:function|method) (?P<built_in>\w+)")


_OURS = "blocking.py", "call"  # the harness's wrapper around what waits: what it takes itself is no work of the user's


class _Function(NamedTuple):
    file: str
    line: int  # its first; where it runs, for one that ran before the window began
    name: str


def beside_the_waits_s(detail: Trace, steps: Steps, site: Site, waits: Collection[str]) -> float:
    """Seconds per step that the calls from `site` take beside the `waits` in them ("os.fsync at log.py:12").

    By the stacks of `detail`, so that the profiler's time is in them. 0 where there are no stacks. A call in which the
    optimizer steps, or whose operators the backward needs, is the step itself: of it only what was called farther in
    counts (a library's loop saves its checkpoints in a function of its own).
    """
    python = detail.python
    inside = np.flatnonzero((python.lane == steps.lane) & (python.end > python.start))
    rows = inside[np.lexsort((-python.end[inside], python.start[inside]))]
    if not len(rows):
        return 0.0
    start, end = python.start[rows], python.end[rows]
    parent = intervals.parents(start, end)
    functions = [_function(detail.name(int(code))) for code in python.name[rows]]
    wanted = {(what.rpartition(".")[2], *_holder(functions, where)) for what, where in map(_split, waits)}
    called = {what for what, _, _ in wanted}
    waiting = [
        row
        for row in np.flatnonzero(assign(steps, start) >= 0).tolist()
        if functions[row].name in called and _waits_there(parent, functions, row, wanted)
    ]
    waiting = [int(parent[row]) if functions[parent[row]][::2] == _OURS else row for row in waiting]
    loop = [(each.file, each.name) == (_base(site.file), site.function) for each in functions]
    needed = np.sort(_needed(detail, steps))
    holds = np.searchsorted(needed, end) > np.searchsorted(needed, start)
    calls = sorted({call for row in waiting if (call := _below(parent, row, loop, holds)) is not None})
    whole = intervals.union(start[calls], end[calls])
    waited = intervals.overlap_per_row(*intervals.union(start[waiting], end[waiting]), whole)
    return max(0.0, float(intervals.total(*whole) - waited.sum())) / 1e9 / max(1, len(steps))


def _split(wait: str) -> tuple[str, str]:
    what, _, where = wait.partition(" at ")
    return what, where


def _holder(functions: list[_Function], where: str) -> tuple[str, int]:
    """(file, first line) of the function that "log.py:12" is in: of those that ran the last one that begins before."""
    file, _, line = where.rpartition(":")
    lines = [each.line for each in functions if each.file == file and line.isdigit() and each.line <= int(line)]
    return file, max(lines, default=-1)


def _waits_there(parent: Ints, functions: list[_Function], row: int, wanted: set[tuple[str, str, int]]) -> bool:
    """Whether the function of the script's in which `row` waits is one of those that are `wanted` for it."""
    name, files = functions[row].name, {file for _, file, _ in wanted}
    while parent[row] >= 0:
        row = int(parent[row])
        if functions[row].file in files:
            return (name, functions[row].file, functions[row].line) in wanted
    return False


def _below(parent: Ints, row: int, loop: list[bool], holds: NDArray[np.bool_]) -> int | None:
    """The outermost call around `row`, below the function of the loop, that does not hold the step's own work.

    None where it is not in that function.
    """
    call = row
    while parent[row] >= 0:
        if loop[parent[row]]:
            return call
        row = int(parent[row])
        call = call if holds[row] else row
    return None


def _needed(detail: Trace, steps: Steps) -> Ints:
    """When the step's own work began: operators whose result the backward works on, and the optimizers."""
    rows = Host(detail, steps).graph_rows
    stepping = names_like(detail, detail.annotations.name, lambda name: name.startswith("Optimizer.step#"))
    return np.concatenate((detail.operators.start[rows], detail.annotations.start[stepping]))


def _function(name: str) -> _Function:
    """A Python function as the profiler writes it; without a file and a line one of C."""
    found = _WRITTEN.match(name)
    if found is None:
        return _Function("", 0, "")
    return _Function(_base(found["file"] or ""), int(found["line"] or 0), found["own"] or found["built_in"])


def _base(file: str) -> str:
    return os.path.basename(file.replace("\\", "/"))
