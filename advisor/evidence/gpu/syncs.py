"""Where the host waits for the device inside a step, and why."""

from __future__ import annotations

import numpy as np

from advisor.evidence.facts import Steps, SyncRow
from advisor.evidence.gpu.copies import D2H_SITES, H2D_SITES, following_sync, sites_of
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.harness.layout import CallSite, RunRecord
from advisor.trace.tables import Ints

ITEM = "item"
COPY = "copy"
EXPLICIT = "explicit"
OTHER = "other"

_ITEM_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
COPY_OPERATORS = ("aten::copy_", "aten::to", "aten::_to_copy", "aten::_copy_from", "aten::cpu", "aten::cuda")
_SITES = {
    ITEM: ("Tensor.item", "Tensor.print", "Tensor.tolist"),
    COPY: tuple(dict.fromkeys(H2D_SITES + D2H_SITES)),
    EXPLICIT: ("synchronize",),
}


_BY_DIRECTION = {"HtoD": H2D_SITES, "DtoH": D2H_SITES}


def sync_rows(steps: Steps, device: DeviceWork, nesting: Nesting, record: RunRecord | None) -> tuple[SyncRow, ...]:
    """Synchronizations inside the steps, by runtime call and operator, those that wait longest first."""
    _, groups = sync_groups(steps, device, nesting)
    runtime = device.trace.runtime
    rows = []
    for index, ((call, operator, direction), members) in enumerate(groups):
        wait = device.busy.within(runtime.start[members], runtime.end[members])
        cause = _cause(call, operator)
        rows.append(
            SyncRow(
                index=index,
                call=call,
                operator=operator,
                direction=direction,
                count=len(members) / len(steps),
                total_s=float((runtime.end[members] - runtime.start[members]).sum(dtype=np.float64)) / 1e9 / len(steps),
                wait_s=float(wait.sum(dtype=np.float64)) / 1e9 / len(steps),
                cause=cause,
                sites=_sites(cause, direction, record),
            )
        )
    return tuple(rows)


def sync_groups(
    steps: Steps, device: DeviceWork, nesting: Nesting
) -> tuple[Ints, list[tuple[tuple[str, str, str], Ints]]]:
    """(group of each row of ``Trace.runtime`` or -1, [((call, operator, direction), rows)]), the longest first."""
    trace = device.trace
    runtime = trace.runtime
    group = np.full(len(runtime), -1, np.int64)
    rows = np.flatnonzero(device.host.sync_rows & (assign(steps, runtime.start) >= 0))
    if not len(rows):
        return group, []
    outer = nesting.outermost_around(runtime, rows)
    kinds = _copied_before(device)
    members: dict[tuple[str, str, str], list[int]] = {}
    for row, operator in zip(rows.tolist(), outer.tolist(), strict=True):
        name = trace.name(int(trace.operators.name[operator])) if operator >= 0 else ""
        kind = trace.name(int(kinds[row])) if kinds[row] >= 0 else ""
        members.setdefault((trace.name(int(runtime.name[row])), name, kind), []).append(row)
    groups = [(key, np.array(found, np.int64)) for key, found in members.items()]
    groups.sort(key=lambda item: -float((runtime.end[item[1]] - runtime.start[item[1]]).sum(dtype=np.float64)))
    for index, (_, found) in enumerate(groups):
        group[found] = index
    return group, groups


def _copied_before(device: DeviceWork) -> Ints:
    """Per row of ``Trace.runtime``: the kind of the copy that a synchronization there waits for (a code); -1."""
    copies, launch = device.trace.copies, device.items_launch[len(device.trace.kernels) :]
    kinds = np.full(len(device.trace.runtime), -1, np.int64)
    known = launch >= 0
    if not len(kinds) or not known.any():
        return kinds
    rows, kind = launch[known], copies.kind[known]
    after = following_sync(device)[rows]
    kinds[after[after >= 0]] = kind[after >= 0]
    itself = device.host.sync_rows[rows]
    kinds[rows[itself]] = kind[itself]
    return kinds


def _cause(call: str, operator: str) -> str:
    if operator in _ITEM_OPERATORS:
        return ITEM
    # A copy inside of any other operator is the operator's own: nonzero reads how many there are.
    if operator in COPY_OPERATORS or (not operator and "Memcpy" in call):
        return COPY
    return EXPLICIT if not operator and "Synchronize" in call else OTHER


def _sites(cause: str, direction: str, record: RunRecord | None) -> tuple[CallSite, ...]:
    if cause == COPY and direction in _BY_DIRECTION:
        return sites_of(record, _BY_DIRECTION[direction])
    return sites_of(record, _SITES.get(cause, ()))
