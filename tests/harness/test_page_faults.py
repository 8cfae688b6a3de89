"""Pages that are touched first: counted, and what one takes."""

from __future__ import annotations

import mmap

import pytest
import torch

from advisor.harness.machine import rates
from advisor.harness.machine.gauges import PageFaults, resident_pages

PAGES = 2000


@pytest.mark.skipif(resident_pages() is None, reason="only Linux tells")
def test_pages_are_counted_once_and_those_that_stay() -> None:
    faults = PageFaults()
    faults.take()
    faults.begin()
    fresh = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(PAGES):
        fresh[page * mmap.PAGESIZE] = 1
    number, seconds = faults.take()
    assert PAGES <= number < 2 * PAGES and seconds >= 0.0
    assert (faults.kept() or 0) >= 0.9 * PAGES
    for page in range(PAGES):
        fresh[page * mmap.PAGESIZE] = 2
    assert faults.take()[0] < PAGES / 2
    fresh.close()


def test_what_a_fault_takes_is_measured_and_nothing_changed() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert 0.0 < rates.fault(torch) < 1e-4
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
