"""What it costs that tensors are made on the CPU and moved: their copies, and the operators that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.device import DeviceWork
from advisor.evidence.facts import Steps
from advisor.evidence.kernels import launching_operators
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints

_BACK = 16  # so many operators before the copy are looked at: what a mask is made with


@dataclass(frozen=True)
class Births:
    """``rows`` of ``Trace.copies``; ``made_s``: host seconds per traced step in the operators that make the tensors."""

    rows: Ints
    made_s: float


def births(
    steps: Steps, device: DeviceWork, nesting: Nesting, sizes: Mapping[int, tuple[float, frozenset[str]]]
) -> Births:
    """The copies to the device of so many bytes that follow an operator that makes a tensor.

    `sizes`: bytes → (copies of that size per step, names of operators that make them: "aten::zeros"). Where there are
    more copies of that size than so many, which of them are meant cannot be told: none.
    """
    trace = device.trace
    copies, operators = trace.copies, trace.operators
    candidates = (assign(steps, copies.start) >= 0) & names_like(trace, copies.kind, "HtoD".__eq__)
    launch = device.items_launch[len(trace.kernels) :]
    launchers = launching_operators(device, nesting)
    launching = np.zeros(len(operators), bool)
    launching[nesting.outermost[launchers[launchers >= 0]]] = True
    tops = np.flatnonzero(nesting.parent < 0)
    found, seconds = [], 0.0
    for size, (count, makers) in sizes.items():
        rows = np.flatnonzero(candidates & (copies.bytes == size) & (launch >= 0))
        if not len(rows) or len(rows) > 1.1 * count * len(steps):
            continue
        makes = names_like(trace, operators.name, makers.__contains__)
        for row, inner in zip(rows.tolist(), nesting.around(trace.runtime, launch[rows]).tolist(), strict=True):
            if inner < 0:
                continue
            mover = int(nesting.outermost[inner])
            lane = tops[operators.lane[tops] == operators.lane[mover]]
            at = int(np.searchsorted(operators.start[lane], operators.start[mover]))
            before = lane[max(0, at - _BACK) : at]
            makers_before = np.flatnonzero(makes[before])
            if len(makers_before):
                chain = before[makers_before[-1] :]
                chain = chain[~launching[chain]]  # the CPU's own: what lies between may be work for the GPU
                found.append(row)
                seconds += float((operators.end[chain] - operators.start[chain]).sum()) / 1e9
    return Births(np.array(sorted(set(found)), np.int64), seconds / max(len(steps), 1))
