"""What else is done in the calls that wait for something outside of the process: packing, formatting, writing."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.facts import Steps
from advisor.evidence.host import Host
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign
from advisor.harness.layout import Site
from advisor.trace import intervals
from advisor.trace.tables import Ints, Trace

_OURS = "blocking.py", "call"  # the harness's wrapper around what waits: what it takes itself is no work of the user's


def beside_the_waits_s(detail: Trace, steps: Steps, site: Site, waits: Collection[str]) -> float:
    """Seconds per step that the calls from `site` take beside the `waits` in them ("os.fsync at log.py:12").

    By the stacks of `detail`, so that the profiler's time is in them. 0 where there are no stacks. A call in which the
    optimizer steps, or whose operators the backward needs, is the step itself: of it only what was called farther in
    counts (a library's loop saves its checkpoints in a function of its own).
    """
    stacks = Stacks.of(detail, steps.lane)
    if not len(stacks):
        return 0.0
    start, end, functions = stacks.start, stacks.end, stacks.functions
    wanted = {(what.rpartition(".")[2], *_holder(stacks, where)) for what, where in map(_split, waits)}
    called = {what for what, _, _ in wanted}
    waiting = [
        _unwrapped(stacks, row)
        for row in np.flatnonzero(assign(steps, start) >= 0).tolist()
        if functions[row].name in called and _waits_there(stacks, row, wanted)
    ]
    loop = [(each.file, each.name) == (os.path.basename(site.file), site.function) for each in functions]
    holds = stacks.holding(_needed(detail, steps))
    calls = sorted({call for row in waiting if (call := _below(stacks, row, loop, holds)) is not None})
    whole = intervals.union(start[calls], end[calls])
    waited = intervals.overlap_per_row(*intervals.union(start[waiting], end[waiting]), whole)
    return max(0.0, float(intervals.total(*whole) - waited.sum())) / 1e9 / max(1, len(steps))


def _split(wait: str) -> tuple[str, str]:
    what, _, where = wait.partition(" at ")
    return what, where


def _holder(stacks: Stacks, where: str) -> tuple[str, int]:
    """(file, first line) of the function that "log.py:12" is in: of those that ran the last one that begins before."""
    file, _, line = where.rpartition(":")
    lines = [each.line for each in stacks.functions if each.file == file and line.isdigit() and each.line <= int(line)]
    return file, max(lines, default=-1)


def _unwrapped(stacks: Stacks, row: int) -> int:
    """The call of the harness's wrapper around what waits, where there is one."""
    caller = int(stacks.parent[row])
    wraps = caller >= 0 and (stacks.functions[caller].file, stacks.functions[caller].name) == _OURS
    return caller if wraps else row


def _waits_there(stacks: Stacks, row: int, wanted: set[tuple[str, str, int]]) -> bool:
    """Whether the function of the script's in which `row` waits is one of those that are `wanted` for it."""
    name, files = stacks.functions[row].name, {file for _, file, _ in wanted}
    callers = (stacks.functions[each] for each in stacks.up(int(stacks.parent[row])))
    return next(((name, each.file, each.line) in wanted for each in callers if each.file in files), False)


def _below(stacks: Stacks, row: int, loop: list[bool], holds: Mask) -> int | None:
    """The outermost call around `row`, below the function of the loop, that does not hold the step's own work.

    None where it is not in that function.
    """
    call = row
    for caller in stacks.up(int(stacks.parent[row])):
        if loop[caller]:
            return call
        call = call if holds[caller] else caller
    return None


def _needed(detail: Trace, steps: Steps) -> Ints:
    """When the step's own work began: operators whose result the backward works on, and the optimizers."""
    rows = Host(detail, steps).graph_rows
    stepping = names_like(detail, detail.annotations.name, lambda name: name.startswith("Optimizer.step#"))
    return np.concatenate((detail.operators.start[rows], detail.annotations.start[stepping]))
