"""Copies that go away with their synchronization, and device memory that is no longer taken from the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.evidence import Change, Evidence


def _copying(build: Any) -> Any:
    """Two steps of 10 ms: the batch is copied, the GPU computes for 4 ms, a mask is copied, it computes for 4 ms again.

    Each copy takes 0.5 ms once the GPU gets to it; the host waits for it, and needs 0.5 ms to the launch after it.
    """
    for step in range(2):
        base = 10_000.0 * step
        build.step(step + 1, base, base + 10_000)
        for at, called, size in ((base, base, 1_000_000), (base + 5_000, base + 1_100, 4_000)):
            build.operator("aten::to", called, at + 505)
            build.copy(at + 5, at + 495, "Memcpy HtoD (Pageable -> Device)", launched=called + 2, call=10, size=size)
            build.runtime("cudaStreamSynchronize", called + 15, at + 500)
            build.kernel(at + 1000, at + 5000, launched=at + 990)
    return build


def test_a_copy_in_the_middle_takes_its_wait_along(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_copying(builder()).read(tmp_path))
    masks = np.flatnonzero(evidence.trace.copies.bytes == 4_000)
    assert len(masks) == 2
    without = evidence.what_if(Change(remove_copies=masks))
    # The mask's half millisecond, and the half in which the host, no longer held up, launches ahead.
    assert without.before == pytest.approx(0.010) and without.likely == pytest.approx(0.009, rel=0.02)
    assert evidence.what_if(Change(remove_copies=np.empty(0, np.int64))).likely == pytest.approx(0.010, rel=0.01)


def test_the_driver_is_asked_for_memory_no_longer(builder: Any, tmp_path: Path) -> None:
    build = builder()
    for step in range(2):
        base = 10_000.0 * step
        build.step(step + 1, base, base + 10_000)
        build.kernel(base + 100, base + 5_100, launched=base + 90)
        build.runtime("cudaFree", base + 200, base + 7_000)
        build.runtime("cudaMalloc", base + 7_000, base + 9_500)
        build.kernel(base + 9_600, base + 9_990, launched=base + 9_590)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.what_if(Change()).likely == pytest.approx(0.010, rel=0.01)
    # What remains: 5.39 ms of kernels, a little host time around them.
    assert evidence.what_if(Change(remove_allocations=True)).likely == pytest.approx(0.0055, rel=0.03)
