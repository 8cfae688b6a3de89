"""How many numbers of a sample lists hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from advisor.harness.from_lists import numbers_listed


@pytest.mark.parametrize(
    ("sample", "numbers"),
    [
        ({"signal": [[0.5] * 12] * 100, "label": 3}, 1200),
        (([1, 2, 3], [0.5] * 8), 11),
        ([0.25] * 30, 30),
        ({"signal": np.zeros((100, 12)), "ids": [1, 2]}, 2),
        ((torch.zeros(8), 1), 0),
        ({"text": ["one", "two"], "label": 0}, 0),
        ([[]], 0),
        ("text", 0),
        (3, 0),
    ],
)
def test_numbers_in_lists_are_counted_and_those_of_arrays_are_not(sample: Any, numbers: int) -> None:
    assert numbers_listed(sample) == numbers
