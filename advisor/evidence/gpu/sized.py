"""Synchronizations of operators whose result has a size that only the values tell.

The host must know the size to make the tensor, so the operator itself reads it back: whoever calls it waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.evidence.facts import Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.syncs import OTHER, sync_groups, sync_rows
from advisor.evidence.nesting import Nesting
from advisor.trace.tables import Trace

# Operator → what the user calls. Of nested ones the outermost counts: a mask's index is an aten::nonzero inside an
# aten::index. (ATen's native_functions.yaml and the CUDA kernels behind it, torch 2.6 and 2.15.)
CALLS = {
    "aten::nonzero": "nonzero",
    "aten::nonzero_numpy": "nonzero",
    "aten::argwhere": "nonzero",
    "aten::index": "mask",
    "aten::index_put_": "mask",
    "aten::_index_put_impl_": "mask",
    "aten::masked_select": "mask",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::unique_dim_consecutive": "unique",
    "aten::bincount": "bincount",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::one_hot": "one_hot",
}
_MOST = 0.9  # of the synchronizations of a group: so many are these operators'


@dataclass(frozen=True)
class SizedSyncs:
    """``rows``: indices of ``Evidence.syncs``. ``calls``: what is called (values of CALLS), the longest wait first.

    Figures are per step.
    """

    rows: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()
    count: float = 0.0
    wait_s: float = 0.0


def sized_syncs(steps: Steps, device: DeviceWork, nesting: Nesting) -> SizedSyncs:
    """What the steps wait for inside of operators that have to know the size of their result."""
    trace = device.trace
    _, groups = sync_groups(steps, device, nesting)
    waits: dict[str, float] = {}
    chosen, count = [], 0.0
    for row, (_, members) in zip(sync_rows(steps, device, nesting, None), groups, strict=True):
        # An index on the CPU is copied to the GPU inside of the operator: nothing is read back.
        if row.cause != OTHER or not row.operator or row.direction == "HtoD":
            continue
        names = [_call(trace, nesting, int(at)) for at in nesting.around(trace.runtime, members)]
        found = [name for name in names if name]
        if len(found) < _MOST * len(names):
            continue
        most = max(set(found), key=lambda name: (found.count(name), name))
        waits[most] = waits.get(most, 0.0) + row.wait_s
        chosen.append(row.index)
        count += row.count
    return SizedSyncs(tuple(chosen), tuple(sorted(waits, key=lambda name: -waits[name])), count, sum(waits.values()))


def _call(trace: Trace, nesting: Nesting, operator: int) -> str:
    """What the user called, for the innermost operator around a synchronization; "" for any other operator."""
    found = ""
    while operator >= 0:
        found = CALLS.get(trace.name(int(trace.operators.name[operator])), found)
        operator = int(nesting.parent[operator])
    return found
