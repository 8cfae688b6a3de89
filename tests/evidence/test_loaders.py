"""What is known of a loader's fetches, by what the run recorded of them."""

from __future__ import annotations

import pytest

from advisor.evidence.loading.loaders import _single_s
from advisor.harness.layout import Loader


@pytest.mark.parametrize(
    ("single_s", "fetch_s", "cpu_s", "workers", "expected"),
    [
        (0.082, 0.0154, 0.0156, 0, 0.031),  # the first fetch opened the files
        (0.11, 0.05, 0.08, 0, 0.11),  # some of it waits, and the rest is of four threads
        (0.082, None, None, 0, 0.082),
        (None, 0.01, 0.01, 0, None),
        (0.082, 0.0154, 0.0156, 2, None),
    ],
)
def test_a_fetch_on_one_thread_takes_no_longer_than_all_compute_and_wait(
    single_s: float | None, fetch_s: float | None, cpu_s: float | None, workers: int, expected: float | None
) -> None:
    loader = Loader(num_workers=workers, single_s=single_s, fetch_s=fetch_s, fetch_cpu_s=cpu_s)
    assert _single_s(loader) == (pytest.approx(expected) if expected is not None else None)
