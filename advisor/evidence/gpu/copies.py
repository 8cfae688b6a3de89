"""Copies between host and device: how many bytes, from where, hidden or exposed, blocking or not."""

from __future__ import annotations

import numpy as np

from advisor.evidence.coded import Mask, pairs
from advisor.evidence.facts import Copies, CopyRow, Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.steps import assign
from advisor.harness.layout import CallSite, RunRecord
from advisor.trace.tables import Ints

# A synchronization that begins within this time of a copy call's return belongs to the copy: `Tensor.to` calls
# cudaMemcpyAsync and then cudaStreamSynchronize with nothing in between (1-2 µs in the reference traces).
FOLLOWS_NS = 50_000

# A copy from pageable memory of up to so many bytes is staged at once. Before a larger one "a stream sync is performed"
# (CUDA runtime API, "API synchronization behavior"): the call waits for all that its stream has still to do.
STAGED_BYTES = 64 << 10
# A call that outlasts its stream's work by so little may do so by chance: launches take 2-100 us under a profiler.
LONGEST_LAUNCH_NS = 100_000

H2D_SITES = ("Tensor.to", "Tensor.cuda")
D2H_SITES = ("Tensor.cpu", "Tensor.item", "Tensor.numpy", "Tensor.tolist", "Tensor.print", "Tensor.to")


def copy_facts(steps: Steps, device: DeviceWork, record: RunRecord | None) -> Copies:
    """Copies and memsets that start inside the steps, by kind and memory, per step."""
    trace = device.trace
    table = trace.copies
    inside = assign(steps, table.start) >= 0
    if not inside.any():
        return Copies(())
    duration = table.end - table.start
    exposed = duration - device.kernels.within(table.start, table.end)
    blocked, waiting, blocking = blocking_time(device)
    rows = []
    kinds, memories, _ = pairs(table.kind[inside], table.pageable[inside].astype(np.int64))
    for code, pageable in zip(kinds, memories, strict=True):
        chosen = inside & (table.kind == code) & (table.pageable == bool(pageable))
        kind = trace.name(int(code))
        count = int(chosen.sum())
        rows.append(
            CopyRow(
                kind=kind,
                pageable=bool(pageable),
                count=count / len(steps),
                bytes=float(table.bytes[chosen].sum(dtype=np.float64)) / len(steps),
                total_s=float(duration[chosen].sum(dtype=np.float64)) / 1e9 / len(steps),
                exposed_s=float(exposed[chosen].sum(dtype=np.float64)) / 1e9 / len(steps),
                blocking_s=float(blocked[chosen].sum(dtype=np.float64)) / 1e9 / len(steps),
                waiting_s=float(waiting[chosen].sum(dtype=np.float64)) / 1e9 / len(steps),
                blocking=bool(2 * int(blocking[chosen].sum()) > count),
                sites=_sites(kind, record),
            )
        )
    return Copies(tuple(sorted(rows, key=lambda row: -row.total_s)))


def blocking_time(device: DeviceWork) -> tuple[Ints, Ints, Mask]:
    """Per row of ``Trace.copies``: ns that the host is blocked by it, those of them in which the device is busy with
    earlier work before the copy begins, and whether the host is blocked at all.

    A copy blocks when a synchronization follows its call on the same thread, when the call itself is a blocking one
    (``hipMemcpyWithStream``), or when it goes to the device from pageable memory (the driver stages it in the call).
    """
    trace = device.trace
    launch = device.items_launch[len(trace.kernels) :]
    runtime = trace.runtime
    ns, waiting = np.zeros(len(launch), np.int64), np.zeros(len(launch), np.int64)
    if not len(runtime):
        return ns, waiting, np.zeros(len(launch), bool)
    known = launch >= 0
    follower = following_sync(device)[launch]
    has_sync = known & (follower >= 0)
    to_device = trace.copies.kind == _code(device, "HtoD")
    itself = known & (device.host.sync_rows[launch] | (trace.copies.pageable & to_device))
    for blocks, call in ((has_sync, follower), (itself, launch)):
        start, end = runtime.start[call], runtime.end[call]
        ns += np.where(blocks, end - start, 0)
        waiting += np.where(blocks, device.busy.within(start, np.minimum(end, trace.copies.start)), 0)
    return ns, waiting, has_sync | itself


def waiting_uploads(device: DeviceWork) -> Mask:
    """Rows of ``Trace.copies``: to the device, from pageable memory, whose call waits until their stream gets to them.

    As the trace shows: the call lasts until what was queued on the stream before is done, or, where nothing was, until
    the copy is under way. A small copy is on its queue when the call returns, and the stream then still busy.
    """
    trace, runtime = device.trace, device.trace.runtime
    launch = device.items_launch[len(trace.kernels) :]
    chosen: Mask = trace.copies.pageable & (trace.copies.kind == _code(device, "HtoD")) & (launch >= 0)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return chosen
    start, end = runtime.start[launch[rows]], runtime.end[launch[rows]]
    queued = _queued_until(device, rows)
    waits = (queued > start) & (queued <= end)
    large = trace.copies.bytes[rows] > STAGED_BYTES
    staging = (queued <= start) & (trace.copies.start[rows] < end)
    chosen[rows] = (waits & (large | (queued - start > LONGEST_LAUNCH_NS))) | (staging & large)
    return chosen


def _queued_until(device: DeviceWork, rows: Ints) -> Ints:
    """When the work that runs before each of these copies on its stream is done (ns); long ago where there is none."""
    items = len(device.trace.kernels) + rows
    until = np.full(len(rows), np.int64(-1 << 62))
    for stream in np.unique(device.items_stream[items]):
        members = np.flatnonzero(device.items_stream == stream)
        members = members[np.argsort(device.items_start[members], kind="stable")]
        done = np.maximum.accumulate(device.items_end[members])
        here = np.flatnonzero(device.items_stream[items] == stream)
        before = np.searchsorted(device.items_start[members], device.items_start[items[here]]) - 1
        until[here] = np.where(before >= 0, done[np.maximum(before, 0)], until[here])
    return until


def following_sync(device: DeviceWork) -> Ints:
    """Per row of ``Trace.runtime``: the synchronization that directly follows it on its thread; -1."""
    runtime = device.trace.runtime
    matter = np.flatnonzero(device.host.launches | device.host.sync_rows)
    order = matter[np.lexsort((runtime.start[matter], runtime.lane[matter]))]
    found = np.full(len(runtime), -1, np.int64)
    if len(order) < 2:
        return found
    here, after = order[:-1], order[1:]
    close = (runtime.lane[here] == runtime.lane[after]) & (runtime.start[after] - runtime.end[here] < FOLLOWS_NS)
    close &= device.host.sync_rows[after] & ~device.host.sync_rows[here]
    found[here[close]] = after[close]
    return found


def _code(device: DeviceWork, text: str) -> int:
    try:
        return device.trace.names.index(text)
    except ValueError:
        return -2  # no row has it


def _sites(kind: str, record: RunRecord | None) -> tuple[CallSite, ...]:
    wanted = {"HtoD": H2D_SITES, "DtoH": D2H_SITES}.get(kind, ())
    return sites_of(record, wanted)


def sites_of(record: RunRecord | None, kinds: tuple[str, ...]) -> tuple[CallSite, ...]:
    """Recorded call sites of these kinds that are reached in the steps, the most expensive first."""
    if record is None:
        return ()
    found = [site for site in record.call_sites if site.kind in kinds and site.calls_per_step > 0]
    return tuple(sorted(found, key=lambda site: (-site.seconds_per_step, -site.calls_per_step)))
