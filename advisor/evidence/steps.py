"""The step windows of a trace."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.host import LOADER
from advisor.trace.tables import Ints, Spans, Trace

if TYPE_CHECKING:
    from advisor.evidence.gpu.device import DeviceWork

# What a loop does once in each of its rounds, and which end of that is where a round ends: the optimizer's step (as for
# the harness), else the next batch. torch.optim and torch.utils.data annotate these themselves.
_ROUNDS = ((re.compile(r"^Optimizer\.step#"), "end", "Optimizer.step"), (LOADER, "start", "a loader's next batch"))
_LEAST_ROUNDS = 3
_MOST_IN_TURN, _ALIKE = 4, 0.02  # by eye: operators of one loop's rounds hardly differ in number
# By eye, too: the three trainings that this was seen in had 2 to 70 times as much.
_BEHIND = 0.25  # of the steps' time: a device that goes on for longer after them is what they wait for in the end
_NUMBER = re.compile(r"#(\d{1,19})")
_LARGEST = 2**63 - 1


def step_windows(trace: Trace) -> Steps:
    """Windows of the ``ProfilerStep#N`` annotations; without any, from one optimizer's step to the next, else from one
    batch to the next; else one pseudo-step over the device's events (the host's, where there are none): what the host
    did before the first and after the last of them is no part of the work.

    A step ends where the next one begins, should they overlap. An empty trace has no steps.
    """
    spans = trace.steps
    keep = spans.end > spans.start
    if keep.any():
        order = np.argsort(spans.start[keep], kind="stable")
        start, end = spans.start[keep][order], spans.end[keep][order].copy()
        end[:-1] = np.minimum(end[:-1], start[1:])
        numbers = [_number(trace.name(int(code))) for code in spans.name[keep][order]]
        lanes, counts = np.unique(spans.lane[keep], return_counts=True)
        return Steps(start, end, np.array(numbers, np.int64), int(lanes[np.argmax(counts)]))
    for pattern, side, boundary in _ROUNDS:
        found = _rounds(trace, pattern, side, boundary)
        if found is not None:
            return found
    lo, hi = whole_window(trace)
    if hi <= lo:
        empty = np.empty(0, np.int64)
        return Steps(empty, empty, empty, pseudo=True)
    return Steps(np.array([lo]), np.array([hi]), np.zeros(1, np.int64), busiest_lane(trace), pseudo=True)


def device_windows(steps: Steps, device: DeviceWork, drained: bool = False) -> Steps:
    """The same steps by the device, where it is far behind a host that waits for nothing: their host was done with them
    long before. Each ends when the work is done that was launched until the host's end of it.

    `drained`: the host waits for the device at the end of the last one, as the harness does.

    A host may be a thousand launches ahead: five steps of a compiled model took it 12 ms, and the device 850.
    """
    if steps.pseudo or not len(steps):
        return steps
    known = np.flatnonzero(device.items_launch >= 0)
    launched = device.trace.runtime.start[device.items_launch[known]]
    order = np.argsort(launched, kind="stable")
    bounds = np.append(steps.start, steps.end[-1])
    before = np.searchsorted(launched[order], bounds)
    if not len(known) or before[0] == len(known):
        return steps
    done = np.maximum.accumulate(device.items_end[known[order]])
    at_device = np.where(before > 0, done[np.maximum(before - 1, 0)], bounds)
    late = at_device[1:] - bounds[1:]
    if drained:
        late = late[:-1] if len(late) > 1 else late
    # One late step at the end is one that waited for something; the host is ahead of all of them.
    if late[-1] < _BEHIND * (bounds[-1] - bounds[0]) or (len(late) > 1 and 4 * np.median(late[:-1]) < late[-1]):
        return steps
    if not before[0]:
        at_device[0] = device.items_start[known].min()  # what was under way before was launched before the trace begins
    bounds = np.maximum.accumulate(np.maximum(bounds, at_device))
    if (bounds[1:] <= bounds[:-1]).any():
        return steps  # a step without work
    return replace(steps, start=bounds[:-1], end=bounds[1:], behind=True)


def _rounds(trace: Trace, pattern: re.Pattern[str], side: str, boundary: str) -> Steps | None:
    """Windows from one annotation like `pattern` to the next; of several optimizers, of the one that steps least often.

    None for fewer than three of them: what lies before the first and after the last is no whole step, and the first
    batch takes as long as an epoch takes to start.
    """
    spans = trace.annotations
    rows = np.flatnonzero(names_like(trace, spans.name, pattern.search))
    names, counts = np.unique(spans.name[rows], return_counts=True)
    often = counts >= _LEAST_ROUNDS
    if not often.any():
        return None
    chosen = rows[spans.name[rows] == names[often][np.argmin(counts[often])]]
    moments = np.unique(spans.end[chosen] if side == "end" else spans.start[chosen])
    if side == "start" and len(moments) > 1:
        moments = moments[1:]  # the first batch of an epoch is as late as its workers start
    if len(moments) < 2:
        return None
    lanes, times = np.unique(spans.lane[chosen], return_counts=True)
    moments = moments[:: _period(np.diff(np.searchsorted(np.sort(trace.operators.start), moments)))]
    numbers = np.arange(len(moments) - 1, dtype=np.int64)
    return Steps(moments[:-1], moments[1:], numbers, int(lanes[np.argmax(times)]), boundary=boundary)


def _period(operators: Ints) -> int:
    """After how many of the windows, with so many operators each, the same ones come again: 1 where they are all alike.

    Two optimizers of one class, or two loaders, are annotated by one name: a GAN's windows are its two halves in turn.
    """
    for period in range(1, _MOST_IN_TURN + 1):
        if len(operators) < 2 * period:
            break
        before, after = operators[:-period], operators[period:]
        if (np.abs(after - before) <= _ALIKE * np.maximum(after, before)).all():
            return period
    return 1


def whole_window(trace: Trace) -> tuple[int, int]:
    """[first start, last end) of the device's events, or of the host's without any; (0, 0) without events."""
    present: list[Spans] = [table for table in (trace.kernels, trace.copies) if len(table)]
    present = present or [table for table in (trace.operators, trace.annotations, trace.runtime) if len(table)]
    if not present:
        return 0, 0
    return min(int(table.start.min()) for table in present), max(int(table.end.max()) for table in present)


def busiest_lane(trace: Trace) -> int:
    """The thread with most operators, else with most runtime calls; -1 without any."""
    for table in (trace.operators, trace.runtime):
        if len(table):
            lanes, counts = np.unique(table.lane, return_counts=True)
            return int(lanes[np.argmax(counts)])
    return -1


def assign(steps: Steps, moments: Ints) -> Ints:
    """Index of the step that contains each moment; -1 outside of all steps."""
    if not len(steps):
        return np.full(len(moments), -1, np.int64)
    index = np.searchsorted(steps.start, moments, side="right") - 1
    inside = (index >= 0) & (moments < steps.end[np.maximum(index, 0)])
    return np.where(inside, index, -1)


def by_step(rows: Ints, step: Ints, steps: int) -> list[Ints]:
    """Of `rows`, each in the step that `step` says (-1: in none), those of each of so many steps, in their order."""
    order = np.argsort(step, kind="stable")
    return np.split(rows[order], np.searchsorted(step[order], np.arange(steps + 1)))[1:-1]


def _number(name: str) -> int:
    match = _NUMBER.search(name)
    # A damaged file may have any number of digits.
    return min(int(match.group(1)), _LARGEST) if match else 0
