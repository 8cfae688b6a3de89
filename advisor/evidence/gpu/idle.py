"""Each gap of the device, and what the host did meanwhile.

The device works off queues, so a gap means that the next piece of work was not there yet: the host had not launched it.
What the host did until then is the cause. Only when the work was queued already is the gap the device's own.
"""

from __future__ import annotations

import numpy as np

from advisor.evidence.coded import Mask
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import IDLE_CLASSES, IDLE_UNKNOWN, IdleGaps, Steps
from advisor.evidence.gpu.copies import waiting_uploads
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.host import Host, select
from advisor.trace.tables import Ints

# From the begin of a launch call to the begin of the kernel on an idle device: 3-10 µs on current hardware, more under
# a profiler. (NVIDIA developer blog, "Understanding the visualization of overhead and latency in Nsight Systems".)
LAUNCH_LATENCY_NS = 20_000

# With work in its queue a device rests 1-10 µs between kernels, some more to switch streams or start a graph. A longer
# rest waits for something that the trace does not show (a dependency elsewhere, or events left out of the file).
QUEUED_NS = 100_000

# A host that launches nothing for so long is at something else: a preprocessor, a tokenizer, a log. (Eager PyTorch
# takes 5-50 us an operator, a few times that under a profiler that collects stacks.)
PREPARING_NS = 5_000_000

# A call that takes longer, on an idle device, sets something up: a context, a library, the kernel's own code, which
# CUDA loads at its first launch (CUDA C++ programming guide, "Lazy Loading"). Launches take 2-100 us under a profiler.
SETUP_NS = 1_000_000

_LOADER, _SYNC, _LAUNCH, _OPERATORS, _PYTHON, _QUEUED, _UNKNOWN = range(len(IDLE_CLASSES))


def idle_gaps(steps: Steps, host: Host, device: DeviceWork) -> IdleGaps:
    """Gaps of the device inside the steps, in order of time, with their causes. A gap over a step's end is two."""
    start, end, step = _gaps(steps, device.busy)
    parts = np.zeros((len(start), len(IDLE_CLASSES)), np.int64)
    if not len(start):
        return IdleGaps(start, end, step, parts, np.empty(0, np.int64))

    launched, returned = _next_launch(end, device)
    known = launched >= 0
    # Until `upto` the device waited for the host to get to the launch; afterwards for the launch to take effect.
    upto = np.where(known, np.clip(launched, start, end), end)
    in_call = np.where(known, np.clip(returned, upto, end), end)
    direct = known & (end - launched <= LAUNCH_LATENCY_NS)
    queued = np.where(direct, 0, end - in_call)
    parts[:, _LAUNCH] += end - upto - queued
    short = queued <= QUEUED_NS
    parts[:, _QUEUED] += np.where(short, queued, 0)
    parts[:, _UNKNOWN] += np.where(short, 0, queued)

    waiting = (host.loader, host.sync.minus(host.loader))
    off = waiting[0].union(waiting[1])
    launching = host.launching.minus(off)
    others = host.operators.minus(off).minus(launching)
    for column, coverage in ((_LOADER, waiting[0]), (_SYNC, waiting[1]), (_LAUNCH, launching), (_OPERATORS, others)):
        parts[:, column] += coverage.within(start, upto)
    rest = (upto - start) - _covered_by(off, launching, others, start, upto)
    seen = np.clip(host.seen[0], start, upto), np.clip(host.seen[1], start, upto)
    python = np.minimum(rest, _uncovered(off, launching, others, *seen))
    parts[:, _PYTHON] += python
    parts[:, _UNKNOWN] += rest - python

    _charge_synchronizations(parts, start, end, host, device)
    return IdleGaps(start, end, step, parts, parts.argmax(axis=1).astype(np.int64))


def idle_between_launches(gaps: IdleGaps, steps: Steps) -> float:
    """Share of the steps in which the device waits for launches, longer pauses of the host left out."""
    short = gaps.end - gaps.start <= PREPARING_NS
    return float(gaps.parts[short][:, [_LAUNCH, _PYTHON]].sum()) / max(1, steps.total_ns)


def setting_up(host: Host, device: DeviceWork) -> Coverage:
    """While the device idles because a call of the host that neither waits nor copies takes longer than SETUP_NS."""
    runtime = device.trace.runtime
    long = (runtime.end - runtime.start > SETUP_NS) & np.isin(runtime.lane, host.lanes)
    own = long & ~_copying(device) & ~host.sync_rows & ~host.allocation_rows
    return select(runtime, own).minus(device.busy)


def _copying(device: DeviceWork) -> Mask:
    """Rows of ``Trace.runtime`` that start a copy or a memset."""
    rows = np.zeros(len(device.trace.runtime), bool)
    launch = device.items_launch[len(device.trace.kernels) :]
    rows[launch[launch >= 0]] = True
    return rows


def stalled_in(gaps: IdleGaps, host: Host, device: DeviceWork, cause: str) -> str:
    """The call in which the host waits for most of the idle time of `cause`; "" where it does not wait.

    `cause` is IDLE_UNKNOWN (no synchronization accounts for it, and the host waits all the same) or IDLE_SYNC.
    """
    part = gaps.parts[:, IDLE_CLASSES.index(cause)]
    start, end = gaps.start[part > 0], gaps.end[part > 0]
    runtime = host.trace.runtime
    matter = host.sync_rows | host.allocation_rows
    if cause == IDLE_UNKNOWN:  # a copy from or to pageable memory, too, returns when it is done
        matter = host.sync_rows | (_copying(device) & (runtime.end - runtime.start > QUEUED_NS))
    rows = np.flatnonzero(matter & np.isin(runtime.lane, host.lanes))
    waited = int(Coverage.of(runtime.start[rows], runtime.end[rows]).within(start, end).sum())
    if 2 * waited < int(part.sum()) or not waited:
        return ""
    idle = Coverage.of(start, end).within(runtime.start[rows], runtime.end[rows])
    names, inverse = np.unique(runtime.name[rows], return_inverse=True)
    return host.trace.name(int(names[np.argmax(np.bincount(inverse, weights=idle))]))


def _gaps(steps: Steps, busy: Coverage) -> tuple[Ints, Ints, Ints]:
    """(start, end, step) of what is not busy inside each step."""
    inside = Coverage.of(steps.start, steps.end).minus(busy)
    # Neighbouring steps merge into one window: cut at the boundaries again.
    cuts = np.unique(np.concatenate((steps.start, steps.end)))
    edges = np.unique(np.concatenate((inside.start, inside.end, cuts[inside.contains(cuts)])))
    if len(edges) < 2:
        empty = np.empty(0, np.int64)
        return empty, empty, empty
    start, end = edges[:-1], edges[1:]
    keep = inside.contains(start)
    start, end = start[keep], end[keep]
    return start, end, np.searchsorted(steps.start, start, side="right") - 1


def _next_launch(ends: Ints, device: DeviceWork) -> tuple[Ints, Ints]:
    """(start, end) of the call that launched the next piece of work after each gap; -1 where unknown."""
    starts = device.items_start
    if not len(starts):
        return np.full(len(ends), -1, np.int64), np.full(len(ends), -1, np.int64)
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], ends, side="left")
    row = device.items_launch[order[np.minimum(index, len(order) - 1)]]
    known = (index < len(order)) & (row >= 0)
    runtime = device.trace.runtime
    if not len(runtime):
        return np.full(len(ends), -1, np.int64), np.full(len(ends), -1, np.int64)
    return np.where(known, runtime.start[row], -1), np.where(known, runtime.end[row], -1)


def _covered_by(off: Coverage, launching: Coverage, others: Coverage, start: Ints, end: Ints) -> Ints:
    return off.within(start, end) + launching.within(start, end) + others.within(start, end)


def _uncovered(off: Coverage, launching: Coverage, others: Coverage, start: Ints, end: Ints) -> Ints:
    return np.asarray(np.maximum(0, (end - start) - _covered_by(off, launching, others, start, end)), np.int64)


def _charge_synchronizations(parts: Ints, start: Ints, end: Ints, host: Host, device: DeviceWork) -> None:
    """A host that has waited for the device has lost its lead: what it needs to launch again is idle because of that.

    Of each gap in which a synchronization ends, as much of the launching, operators and Python as the host had waited
    is charged to the synchronization; the loader's time stays the loader's. A copy from pageable memory that waits for
    its stream is one until it begins.
    """
    runtime, copies = device.trace.runtime, device.trace.copies
    uploads = np.flatnonzero(waiting_uploads(device))
    calls = device.items_launch[len(device.trace.kernels) + uploads]
    waiting, until, over = host.sync_rows.copy(), runtime.end.copy(), runtime.end.copy()
    waiting[calls] = True
    until[calls] = np.minimum(until[calls], copies.start[uploads])
    over[calls] = np.maximum(over[calls], copies.end[uploads])  # its last part is under way when the call returns
    rows = np.flatnonzero(waiting)
    if not len(rows):
        return
    rows = rows[np.argsort(over[rows], kind="stable")]
    waited = device.busy.within(runtime.start[rows], until[rows])
    waited = np.minimum(waited, (1 << 62) // len(rows))  # absurd durations of a damaged file do not overflow the sum
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(waited)))
    ends = over[rows]
    budget = total[np.searchsorted(ends, end, side="right")] - total[np.searchsorted(ends, start, side="left")]
    for column in (_LAUNCH, _OPERATORS, _PYTHON):
        moved = np.minimum(parts[:, column], budget)
        parts[:, column] -= moved
        parts[:, _SYNC] += moved
        budget = budget - moved
