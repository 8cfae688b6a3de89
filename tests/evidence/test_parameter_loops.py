"""Operators that repeat themselves in a step are found as loops, however they lie beside each other."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.evidence.python_loops.parameter_loops import repeated_runs


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([1, 2] * 10, [(0, 20, 2)]),
        ([9, 8, *[1, 2, 3] * 8, 7], [(2, 26, 3)]),
        ([1, 2] * 7, []),  # too few rounds
        ([*[1, 2] * 10, *[3, 4] * 9], [(0, 20, 2), (20, 38, 2)]),
        # What the second loop ends with is what the first one ended with.
        ([*[1, 5] * 12, *[3, 5, 4, 5] * 12], [(0, 22, 2), (23, 71, 4)]),
        ([1] * 6 + [2, 3, 4] + [1] * 6, []),
        ([], []),
    ],
)
def test_stretches_that_repeat_themselves(codes: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert repeated_runs(np.array(codes, np.int64)) == expected
