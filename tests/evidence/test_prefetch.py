"""Batches made ahead, as a formula has it where there is one."""

from __future__ import annotations

import pytest

from advisor.evidence.loading.prefetch import wait_s

FAST = 0.001


def bursts(slow: float, batches: int = 40, workers: int = 2) -> list[list[float]]:
    """Workers of whose fetches the first one's tenth is slow."""
    found = [[FAST] * batches for _ in range(workers)]
    found[0][10] = slow
    return found


def test_workers_that_keep_up_are_not_waited_for() -> None:
    assert wait_s([[FAST] * 8, [FAST] * 8], 0.01, 2) == 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_that_are_too_slow_are_waited_for_however_much_is_made_ahead(workers: int) -> None:
    fetches = [[0.1] * 50 for _ in range(workers)]
    for prefetch in (2, 8):
        assert wait_s(fetches, 0.01, prefetch) == pytest.approx(0.1 / workers - 0.01, rel=0.02)


@pytest.mark.parametrize(("prefetch", "waited"), [(1, 0.08), (2, 0.06), (4, 0.02), (5, 0.0), (16, 0.0)])
def test_a_burst_takes_what_was_made_ahead(prefetch: int, waited: float) -> None:
    """Its worker begins it when the batch `prefetch` rounds before is taken: so many times the step it may take."""
    assert wait_s(bursts(0.1), 0.01, prefetch) * 80 == pytest.approx(waited, abs=1e-9)


def test_unequal_and_empty_workers() -> None:
    assert wait_s([], 0.01, 2) == 0
    assert wait_s([[0.1], []], 0.01, 2) == 0
    assert wait_s([[0.1, 0.1], [0.1]], 0.01, 2) > 0
    assert wait_s([[0.1]], 0.01, 0) == 0
