"""What it costs that tensors are made on the CPU and moved: their copies, and the operators that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.kernels import launching_operators
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints

# What makes a tensor out of nothing but sizes and numbers. Not aten::empty, with which torch.tensor(numbers,
# device="cuda") begins on the CPU, too.
MAKERS = frozenset(
    f"aten::{name}"
    for name in (
        "zeros", "ones", "full", "eye", "arange", "tril_indices", "triu_indices", "zeros_like", "ones_like",
        "full_like", "rand", "randn", "randint", "rand_like", "randn_like",
    )
)  # fmt: skip
_BACK = 16  # so many operators before the copy are looked at: what a mask is made with
_NEAR = 6  # likewise, where only the trace tells
_KEEPING = frozenset(
    f"aten::{name}"
    for name in ("unsqueeze", "squeeze", "view", "reshape", "expand", "repeat", "to", "_to_copy", "tril", "triu", "t")
)


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
    found = _Found(steps, device, nesting)
    for size, (count, makers) in sizes.items():
        rows = found.candidates[trace.copies.bytes[found.candidates] == size]
        if len(rows) <= 1.1 * count * len(steps):
            found.add(rows, makers, _BACK)
    return found.births()


def births_anywhere(steps: Steps, device: DeviceWork, nesting: Nesting, makers: frozenset[str]) -> Births:
    """The copies to the device right behind an operator that makes a tensor, as a trace alone tells.

    Between the two are operators that keep or convert what was made, and no data is loaded. Files that do not say how
    much is copied tell too little of copies otherwise, too.
    """
    found = _Found(steps, device, nesting)
    rows = found.candidates[device.trace.copies.bytes[found.candidates] > 0]
    found.add(rows, makers, _NEAR, keeping=True)
    return found.births()


class _Found:
    """Copies whose tensor the CPU has made, and the seconds of its making, as they are found."""

    def __init__(self, steps: Steps, device: DeviceWork, nesting: Nesting) -> None:
        trace = device.trace
        launchers = launching_operators(device, nesting)
        self._steps, self._trace, self._nesting, self._host = steps, trace, nesting, device.host
        self._launch = device.items_launch[len(trace.kernels) :]
        self._launching = np.zeros(len(trace.operators), bool)
        self._launching[nesting.outermost[launchers[launchers >= 0]]] = True
        self._tops = np.flatnonzero(nesting.parent < 0)
        inside = (assign(steps, trace.copies.start) >= 0) & names_like(trace, trace.copies.kind, "HtoD".__eq__)
        self.candidates: Ints = np.flatnonzero(inside & (self._launch >= 0))
        self._rows: list[int] = []
        self._seconds = 0.0

    def add(self, rows: Ints, makers: frozenset[str], back: int, keeping: bool = False) -> None:
        """Look at `rows`; of the operators before each copy at so many, with `keeping` only past such as keep."""
        trace, operators = self._trace, self._trace.operators
        makes = names_like(trace, operators.name, makers.__contains__)
        keeps = names_like(trace, operators.name, _KEEPING.__contains__)
        loads = trace.annotations.start[self._host.loader_rows]
        for row, inner in zip(
            rows.tolist(), self._nesting.around(trace.runtime, self._launch[rows]).tolist(), strict=True
        ):
            if inner < 0:
                continue
            mover = int(self._nesting.outermost[inner])
            lane = self._tops[operators.lane[self._tops] == operators.lane[mover]]
            at = int(np.searchsorted(operators.start[lane], operators.start[mover]))
            before = lane[max(0, at - back) : at]
            made = np.flatnonzero(makes[before])
            if not len(made):
                continue
            chain = before[made[-1] :]
            since = int(operators.end[chain[0]])
            if keeping and not (
                keeps[chain[1:]].all()
                and not self._launching[chain].any()
                and not ((loads > since) & (loads < operators.start[mover])).any()
            ):
                continue
            chain = chain[~self._launching[chain]]  # the CPU's own: what lies between may be work for the GPU
            self._rows.append(row)
            self._seconds += float((operators.end[chain] - operators.start[chain]).sum(dtype=np.float64)) / 1e9

    def births(self) -> Births:
        return Births(np.array(sorted(set(self._rows)), np.int64), self._seconds / max(len(self._steps), 1))
