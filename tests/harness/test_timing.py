"""What the intervals between steps tell."""

from __future__ import annotations

import pytest

from advisor.harness.timing import period


@pytest.mark.parametrize(
    ("intervals", "every"),
    [
        ([2.0, 2.0, 2.0, 2.0, 100.0] * 8, 5),
        ([2.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0, 140.0] * 5, 8),  # a hiccup is no period
        ([33.0, 31.0, 32.0, 108.0] * 6, 4),
        ([2.0] * 40, 1),
        ([2.0, 2.1, 1.9, 2.2, 2.0] * 8, 1),
        ([2.0] * 19 + [50.0] + [2.0] * 7 + [50.0] + [2.0] * 12, 1),  # twice is no rule
        ([20.0] * 9 + [70.0] + [20.0] * 200 + [70.0] + [20.0] * 50 + [70.0] + [20.0] * 9, 1),  # nor is so little
        ([1.0, 50.0], 1),
        ([], 1),
    ],
)
def test_period(intervals: list[float], every: int) -> None:
    assert period(intervals) == every
