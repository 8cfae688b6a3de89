"""A replay of the traced steps: the host launches, streams work off their queues, synchronizations join them again.

The replay keeps what was observed between cause and effect. A piece of device work starts when its stream is free, it
has been launched, and what it visibly waited for on another stream is done, plus the delay that remained in the trace.
What passes between a launch and a start on an idle stream is the launch's own latency: behind earlier work it is over
before that work is, and costs nothing.
The host goes on as fast as it did, unless it waits: for the device, for data, or because a queue is full. So a replay
without a change gives the traced step, and one with a change tells what was hidden behind what.

The traced steps are replayed several times over, each pass going on from the state of the one before, and the last pass
is the answer: a host that may run ahead needs a while to do so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.facts import Steps
from advisor.evidence.gpu.copies import following_sync, waiting_uploads
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.idle import PREPARING_NS, QUEUED_NS, setting_up
from advisor.trace.tables import Ints

# Launches that may be under way before the host has to wait (CUDA's queue holds 1024).
QUEUE_DEPTH = 1000
PASSES = 3
# Work that starts within this time of the end of work on another stream has waited for it (event latency: 1-10 µs).
DEPENDS_NS = 10_000
# Between two kernels that are queued on one stream, where the trace shows none (medians on an H200: 0.96 to 1.5 µs).
PAUSE_NS = 1_000
# A launch call that takes much longer than usual while the device works was waiting for room in the queue: the replay
# models that itself.
LAUNCH_CAP = 5

LAUNCH, SYNC, LOAD = 0, 1, 2

# Host events that are enough to replay: as many whole steps as have so many. (1 us each and pass.)
ENOUGH_EVENTS = 5_000
# A single step of more is not replayed whole.
MOST_EVENTS = 50_000


@dataclass(frozen=True, eq=False)
class Script:
    """The host's course through the traced steps, and the work that it launches; times in ns.

    Of a long trace a stretch of its steps, or of a very long step a part: ``steps`` says how many.

    Host events in order: ``kind``; ``gap`` host time before it; ``length`` of the call itself; ``row`` in
    ``Trace.runtime`` (-1 for a load). Items are numbered in the order of their launch, those of event e from
    ``first[e]`` to ``first[e + 1]``. Per item: its index in DeviceWork.items_* (``items``), ``stream``, ``latency``
    (least time from the launch to the start), ``delay`` (likewise from the end of what it waits for), ``after`` (an
    item on another stream, -1). Per event: ``waits_for`` the item that a synchronization ended with (-1),
    ``tail`` what it took after that; negative for a copy whose last part is still under way when the call returns.

    A copy from pageable memory in whose call the host waits for the stream is a synchronization with that copy: what
    the call takes is the stream's earlier work and the copy's own, and no launching.
    """

    steps: float
    kind: list[int]
    gap: Ints
    length: Ints
    row: Ints
    first: list[int]
    items: Ints
    stream: list[int]
    latency: list[int]
    delay: list[int]
    after: list[int]
    waits_for: list[int]
    tail: list[int]
    launch_length: int  # a usual launch call
    end_gap: int  # host time from the last event to the end of the last step

    @property
    def host_ns(self) -> int:
        """Host time per step outside of waiting and loading."""
        launching = np.array(self.kind) == LAUNCH
        return int((self.gap.sum() + self.length[launching].sum() + self.end_gap) / self.steps)


@dataclass(frozen=True, eq=False)
class Variation:
    """What differs from the traced course. ``duration`` is per item of DeviceWork; events are those of the script."""

    duration: NDArray[np.float64]
    host_scale: float = 1.0
    launch_scale: float = 1.0  # on top of it: launch calls, and what the host does between one and the next
    load_ns: float | None = None  # each load takes this long; None: as traced
    quick: frozenset[int] = field(default_factory=frozenset)  # events whose call takes no longer than a usual launch
    dropped: frozenset[int] = field(default_factory=frozenset)  # synchronizations that are gone


def replay(script: Script, variation: Variation) -> float:
    """ns per step in the steady state."""
    duration = variation.duration[script.items].tolist()
    scale = variation.host_scale
    between = np.where(script.gap <= PREPARING_NS, variation.launch_scale, 1.0)
    gaps = (script.gap * scale * between).tolist()
    lengths = script.length.astype(np.float64)
    launching = np.array(script.kind) == LAUNCH
    lengths[launching] *= scale * variation.launch_scale
    for event in variation.quick:
        lengths[event] = min(lengths[event], script.launch_length * scale)
    if variation.load_ns is not None:
        lengths[np.array(script.kind) == LOAD] = variation.load_ns
    calls = lengths.tolist()
    host = 0.0
    free: dict[int, float] = {}
    queue: list[float] = []  # ends of launched items, in order of launch
    boundary = [0.0]
    end = [0.0] * len(duration)
    for _ in range(PASSES):
        for event, kind in enumerate(script.kind):
            host += gaps[event]
            launched = range(script.first[event], script.first[event + 1])
            if launched and len(queue) >= QUEUE_DEPTH:
                host = max(host, queue[-QUEUE_DEPTH])
            for item in launched:
                stream = script.stream[item]
                ready = free.get(stream, 0.0)
                after = script.after[item]
                if after >= 0:
                    ready = max(ready, end[after])
                finished = max(ready + script.delay[item], host + script.latency[item]) + duration[item]
                end[item] = free[stream] = finished
                queue.append(finished)
            if kind != SYNC:
                host += calls[event]
            elif event not in variation.dropped:
                target, tail = script.waits_for[event], script.tail[event]
                if target >= 0:
                    host = max(host, end[target] + min(tail, 0))
                host += max(tail, 0)
            elif event in variation.quick:
                host += calls[event]
        host += script.end_gap * scale
        boundary.append(max(host, max(free.values(), default=0.0)))
        del queue[:-QUEUE_DEPTH]
    return (boundary[-1] - boundary[-2]) / script.steps


def script_of(steps: Steps, device: DeviceWork) -> Script | None:
    """The course of the traced steps; None where nothing was launched inside them."""
    trace, host = device.trace, device.host
    runtime = trace.runtime
    if not len(steps):
        return None
    # Taking device memory from the driver waits for the device and for the driver: neither is the script's own time.
    waiting, uploads = host.sync_rows | host.allocation_rows, waiting_uploads(device)
    waiting[device.items_launch[len(trace.kernels) :][uploads]] = True
    matter = (host.launches | waiting) & np.isin(runtime.lane, host.lanes)
    begin, close, count = _stretch(steps, runtime.start[matter])
    rows = np.flatnonzero(matter & (runtime.start >= begin) & (runtime.start < close))
    loads = np.flatnonzero(host.loader_rows & (trace.annotations.start >= begin) & (trace.annotations.start < close))
    if not len(rows):
        return None
    start = np.concatenate((runtime.start[rows], trace.annotations.start[loads]))
    stop = np.concatenate((runtime.end[rows], trace.annotations.end[loads]))
    row = np.concatenate((rows, np.full(len(loads), -1)))
    order = np.lexsort((-stop, start))
    start, stop, row = start[order], np.minimum(stop[order], close), row[order]
    kind = np.where(row < 0, LOAD, np.where(waiting[row], SYNC, LAUNCH))

    # Calls on several threads, or inside a load, may overlap: the host's time counts once.
    reached = np.maximum.accumulate(np.concatenate(([begin], stop[:-1])))
    # The driver sets itself up once, in a step of a cold trace: the steps to come are without.
    once = setting_up(host, device)
    gap = np.maximum(0, start - reached) - once.within(reached, start)
    length = np.maximum(0, stop - np.maximum(start, reached))
    launching = (kind == LAUNCH) & ~_blocking(device, row)
    usual = int(np.median((stop - start)[launching])) if launching.any() else 0
    capped = launching & (device.busy.within(start, stop) > (stop - start) // 2)
    length = np.where(capped, np.minimum(length, min(LAUNCH_CAP * max(usual, 1), 1 << 62)), length)
    set_up = np.where(launching, once.within(start, stop), 0)
    length = np.maximum(0, length - set_up)

    event_of_row = np.full(len(runtime), -1, np.int64)
    known = row >= 0
    event_of_row[row[known]] = np.flatnonzero(known)
    first, items = _items_by_event(device, event_of_row, start, begin, close)
    stream, latency, delay, after = _dependencies(device, items, np.repeat(set_up, np.diff(first)))
    waits_for, tail = _waits(device, kind, start, stop, first, items, uploads)
    drained = int(host.drained.within(np.array([begin]), np.array([close]))[0])
    end_gap = max(0, close - int(max(reached[-1], stop[-1])) - drained)
    return Script(
        count,
        kind.tolist(),
        gap,
        length,
        row,
        first,
        items,
        stream,
        latency,
        delay,
        after,
        waits_for,
        tail,
        usual,
        end_gap,
    )


def _stretch(steps: Steps, moments: Ints) -> tuple[int, int, float]:
    """(begin, end, how many steps that is) of what is replayed; `moments` are the starts of host events, in order.

    All steps, or of many events as many whole steps as are enough, those whose mean is nearest to the mean of all. Of a
    step with more than MOST_EVENTS so many from its middle.
    """
    bounds = np.append(steps.start, steps.end[-1])
    before = np.searchsorted(moments, bounds)
    events, total = int(before[-1] - before[0]), int(bounds[-1] - bounds[0])
    whole = min(len(steps), max(1, ENOUGH_EVENTS * len(steps) // max(events, 1)))
    mean = total / len(steps)
    at = int(np.argmin(np.abs((bounds[whole:] - bounds[:-whole]) / whole - mean)))
    first, last = int(before[at]), int(before[at + whole])
    if last - first <= MOST_EVENTS or whole > 1:
        return int(bounds[at]), int(bounds[at + whole]), whole
    middle = (first + last - MOST_EVENTS) // 2
    begin, close = int(moments[middle]), int(moments[middle + MOST_EVENTS])
    return begin, close, max(close - begin, 1) / mean


def async_copies(script: Script, device: DeviceWork, only: Ints | None = None) -> tuple[frozenset[int], frozenset[int]]:
    """(events whose call becomes a usual launch, synchronizations that go) when copies to the device do not block.

    `only`: these rows of ``Trace.copies``, not all.
    """
    trace = device.trace
    kernels = len(trace.kernels)
    to_device = names_like(trace, trace.copies.kind, "HtoD".__eq__)
    if only is not None:
        to_device = to_device & np.isin(np.arange(len(to_device)), only)
    launch = device.items_launch[kernels:][to_device]
    launch = launch[launch >= 0]
    followers = following_sync(device)[launch] if len(launch) else launch
    events = {int(row): event for event, row in enumerate(script.row.tolist()) if row >= 0}
    quick = frozenset(events[int(r)] for r in launch if int(r) in events)
    dropped = frozenset(events[int(r)] for r in followers if r >= 0 and int(r) in events)
    # A call that copies and waits in one (cudaMemcpy, hipMemcpyWithStream) stops waiting.
    return quick, dropped | frozenset(event for event in quick if script.kind[event] == SYNC)


def _blocking(device: DeviceWork, row: Ints) -> NDArray[np.bool_]:
    """Events that are copies from pageable memory: their call is long because it copies."""
    trace = device.trace
    launch = device.items_launch[len(trace.kernels) :]
    pageable = launch[(launch >= 0) & trace.copies.pageable]
    return np.isin(row, pageable) & (row >= 0)


def _items_by_event(
    device: DeviceWork, event_of_row: Ints, start: Ints, begin: int, close: int
) -> tuple[list[int], Ints]:
    """Items in order of their launching event, and of their start within it.

    An item whose launch is not in the file goes with the last launch before it, if it ran inside the steps.
    """
    launch = device.items_launch
    event = np.where(launch >= 0, event_of_row[launch] if len(event_of_row) else -1, -1)
    orphan = (launch < 0) & (device.items_start >= begin) & (device.items_start < close)
    event = np.where(orphan, np.maximum(0, np.searchsorted(start, device.items_start, side="right") - 1), event)
    chosen = np.flatnonzero(event >= 0)
    chosen = chosen[np.lexsort((device.items_start[chosen], event[chosen]))]
    first = np.searchsorted(event[chosen], np.arange(len(start) + 1), side="left")
    return first.tolist(), chosen


def _dependencies(
    device: DeviceWork, items: Ints, set_up: Ints
) -> tuple[list[int], list[int], list[int], list[int]]:
    """(stream, latency of the launch, delay behind earlier work, which of `items` on another stream it waited for or
    -1), for each of `items`; `set_up`: what their launch took for once, and will not in the steps to come.
    """
    trace = device.trace
    start, end = device.items_start, device.items_end
    stream, launch = device.items_stream, device.items_launch
    launched = np.where(launch >= 0, trace.runtime.start[launch] if len(trace.runtime) else 0, np.int64(-1 << 62))
    before = np.full(len(start), np.int64(-1 << 62))
    order = np.lexsort((start, stream))
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = end[order[:-1][same]]
    ready = np.maximum(before, launched)
    after = np.full(len(start), -1, np.int64)
    usable = np.zeros(len(start), bool)
    usable[items] = True
    by_end = np.flatnonzero(usable)
    by_end = by_end[np.argsort(end[by_end], kind="stable")]
    late = np.flatnonzero(usable & (start - ready > DEPENDS_NS))
    if len(late) and len(by_end):
        found = np.searchsorted(end[by_end], start[late] + 1_000, side="right") - 1
        other = by_end[np.maximum(found, 0)]
        near = (found >= 0) & (start[late] - end[other] < DEPENDS_NS) & (stream[other] != stream[late])
        near &= launched[other] <= launched[late]  # it must have been launched before, to be known in the replay
        after[late[near]] = other[near]
        ready[late[near]] = np.maximum(ready[late[near]], end[other[near]])
    unknown = ready < -(1 << 61)
    remains = np.where(unknown, 0, np.maximum(0, start - ready))
    remains[items] = np.maximum(0, remains[items] - set_up)
    # On an idle stream it is the launch that an item waited for, and on one that was busy until shortly before. What
    # passes before it starts is over behind earlier work, where only the stream's own pause is left.
    since = np.where(launch >= 0, np.maximum(0, start - launched), 0)
    idle = usable & (launched >= ready) & ~unknown
    known = idle & (remains <= QUEUED_NS)
    usual = int(np.median(remains[known])) if known.any() else 0
    idle |= usable & (launched + usual > ready) & (since <= 2 * usual) & (after < 0) & ~unknown
    # What takes longer waited for something that the trace does not show, or for another stream.
    latent = idle & (remains <= QUEUED_NS) & (after < 0)
    queued = usable & (launched + usual <= ready) & ~unknown & (remains <= QUEUED_NS)
    pause = int(np.median(remains[queued])) if queued.any() else PAUSE_NS
    latency = np.where(idle, since, np.minimum(usual, since))
    latency[items] = np.maximum(0, latency[items] - set_up)
    delay = np.where(latent, np.minimum(remains, pause), remains)
    position = np.full(len(start) + 1, -1, np.int64)  # the last place is what -1 reads
    position[items] = np.arange(len(items))
    return stream[items].tolist(), latency[items].tolist(), delay[items].tolist(), position[after[items]].tolist()


def _waits(
    device: DeviceWork, kind: Ints, start: Ints, stop: Ints, first: list[int], items: Ints, uploads: Mask
) -> tuple[list[int], list[int]]:
    """Per event: which of `items` ended when a synchronization did (-1), and what remained of the call then (ns).

    The calls that launch `uploads`, rows of ``Trace.copies``, wait for these.
    """
    waits_for, tail = np.full(len(kind), -1, np.int64), np.zeros(len(kind), np.int64)
    events = np.flatnonzero(kind == SYNC)
    tail[events] = stop[events] - start[events]
    if not len(items):
        return waits_for.tolist(), tail.tolist()
    ends, order = device.items_end[items], np.arange(len(items))
    by_end = np.lexsort((-order, ends))
    # A blocking copy launches its own item: that belongs to what it waits for.
    launched = np.asarray(first, np.int64)[events + 1]
    at = np.searchsorted(ends[by_end], stop[events] + 2_000, side="right") - 1
    while len(events):
        found = by_end[np.maximum(at, 0)]
        open_ = (at >= 0) & (ends[found] > start[events])
        events, launched, at, found = events[open_], launched[open_], at[open_], found[open_]
        # What another thread launched later, and what ended meanwhile, is not what this call waited for.
        known = found < launched
        waits_for[events[known]] = found[known]
        tail[events[known]] = np.maximum(0, stop[events[known]] - ends[found[known]])
        events, launched, at = events[~known], launched[~known], at[~known] - 1
    own = np.flatnonzero(np.concatenate((np.zeros(len(device.trace.kernels), np.bool_), uploads))[items])
    events = np.searchsorted(first, own, side="right") - 1
    waits_for[events], tail[events] = own, stop[events] - ends[own]
    return waits_for.tolist(), tail.tolist()
