"""Copies between host and device: how many bytes, from where, hidden or exposed, blocking or not."""

from __future__ import annotations

import numpy as np

from advisor.evidence.coded import Mask, pairs
from advisor.evidence.device import DeviceWork
from advisor.evidence.facts import Copies, CopyRow, Steps
from advisor.evidence.steps import assign
from advisor.harness.layout import CallSite, RunRecord
from advisor.trace.tables import Ints

# A synchronization that begins within this time of a copy call's return belongs to the copy: `Tensor.to` calls
# cudaMemcpyAsync and then cudaStreamSynchronize with nothing in between (1-2 µs in the reference traces).
FOLLOWS_NS = 50_000

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
    blocked, blocking = blocking_time(device)
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
                blocking=bool(2 * int(blocking[chosen].sum()) > count),
                sites=_sites(kind, record),
            )
        )
    return Copies(tuple(sorted(rows, key=lambda row: -row.total_s)))


def blocking_time(device: DeviceWork) -> tuple[Ints, Mask]:
    """Per row of ``Trace.copies``: ns that the host is blocked by it, and whether it is blocked at all.

    A copy blocks when a synchronization follows its call on the same thread, when the call itself is a blocking one
    (``hipMemcpyWithStream``), or when it goes to the device from pageable memory (the driver stages it in the call).
    """
    trace = device.trace
    launch = device.items_launch[len(trace.kernels) :]
    runtime = trace.runtime
    ns = np.zeros(len(launch), np.int64)
    if not len(runtime):
        return ns, np.zeros(len(launch), bool)
    known = launch >= 0
    follower = following_sync(device)[launch]
    has_sync = known & (follower >= 0)
    to_device = trace.copies.kind == _code(device, "HtoD")
    itself = known & (device.host.sync_rows[launch] | (trace.copies.pageable & to_device))
    ns += np.where(has_sync, runtime.end[follower] - runtime.start[follower], 0)
    ns += np.where(itself, runtime.end[launch] - runtime.start[launch], 0)
    return ns, has_sync | itself


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
