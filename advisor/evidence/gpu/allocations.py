"""Device memory that the steps take from the driver and give back: each call waits for the device, and for the driver.

PyTorch's allocator keeps what it has, so steps that are all alike need none of these calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.facts import Steps
from advisor.evidence.steps import assign
from advisor.trace.tables import Trace

_TAKES = re.compile(r"^(cuda|hip)Malloc$|^cuMemAlloc")
_GIVES = re.compile(r"^(cuda|hip)Free$|^cuMemFree(?!Host)")


@dataclass(frozen=True)
class Allocations:
    """Per step: calls that take device memory from the driver and that give it back, and the host seconds in both.

    ``steps`` is how many of the steps took some.
    """

    taken: float = 0.0
    given: float = 0.0
    seconds: float = 0.0
    steps: int = 0


def device_allocations(trace: Trace) -> Mask:
    """Rows of ``Trace.runtime`` that take device memory from the driver or give it back."""
    return names_like(trace, trace.runtime.name, lambda name: _TAKES.match(name) or _GIVES.match(name))


def allocations(trace: Trace, steps: Steps) -> Allocations:
    """What the steps take and give back."""
    runtime = trace.runtime
    step = assign(steps, runtime.start)
    rows = np.flatnonzero(device_allocations(trace) & (step >= 0))
    if not len(rows):
        return Allocations()
    given = names_like(trace, runtime.name, _GIVES.match)[rows]
    seconds = float((runtime.end[rows] - runtime.start[rows]).sum(dtype=np.float64)) / 1e9
    count = len(steps)
    taking = len(np.unique(step[rows][~given]))
    return Allocations(float((~given).sum()) / count, float(given.sum()) / count, seconds / count, taking)
