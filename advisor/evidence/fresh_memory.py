"""Memory that each step of a CPU run gets anew from the kernel, and what that takes of it.

malloc gives large blocks back to the kernel when they are freed: those over 32 MB at once, others when the end of its
heap is free. What the next step allocates is mapped page by page when it is first touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.steps import assign
from advisor.trace.tables import Trace

if TYPE_CHECKING:
    from advisor.evidence.facts import Steps
    from advisor.harness.layout import RunRecord

# A fault takes longer where several threads have some at a time, and other threads' are counted as well: 1.9 to 2.7 us
# of the steps' thread for each of its own in eight trainings on two cores, of half of them all; alone it takes 1.3.
_CROWDED = 1.5
_LARGE = 1 << 16  # bytes: smaller blocks are cut from memory that stays


@dataclass(frozen=True)
class FreshMemory:
    """Per undisturbed step: pages that are mapped anew, their bytes, and the seconds that the step takes for that."""

    pages: float
    bytes: float
    seconds: float


def fresh_memory(record: RunRecord, detail: Trace, steps: Steps) -> FreshMemory | None:
    """What the kernel maps for what torch's operators allocate; None where it is unknown.

    The time that the kernel took of the steps' thread, but for pages that stay (a buffer that fills up, a file that is
    read through a map). No more than so many faults take, for the thread reads files as well, nor than it takes to
    touch all of what is allocated in a step for the first time.
    """
    timing, environment = record.timing, record.environment
    if not timing.page_faults or timing.system_s is None or timing.pages_kept is None or not environment.fault_s:
        return None
    memory = detail.memory
    taken = memory.bytes[(memory.bytes >= _LARGE) & (memory.device_type == 0) & (assign(steps, memory.at) >= 0)]
    if not len(taken) or not len(steps):
        return None
    allocated = float(taken.sum(dtype=np.float64)) / len(steps)
    pages = max(0.0, timing.page_faults - timing.pages_kept)
    seconds = timing.system_s * pages / timing.page_faults
    most = allocated / environment.page_size * environment.fault_s
    if not environment.huge_pages:  # of which one fault maps hundreds
        most = min(most, _CROWDED * pages * environment.fault_s)
    return FreshMemory(pages, min(allocated, pages * environment.page_size), min(seconds, most))
