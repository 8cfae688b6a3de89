"""The formulas that the accuracy is stated in: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A prediction is meant to hold in 70 % of cases (the target of the project): the range is a central interval of that
# coverage, and the interval score weighs what lies outside accordingly.
COVERAGE = 0.7
# A range that is wider than this, high over low, says too little to count as right.
WIDEST = 2.0


@dataclass(frozen=True)
class Interval:
    """A predicted range of a speedup, with its likeliest value: ``low`` ≤ ``likely`` ≤ ``high``, all positive."""

    low: float
    likely: float
    high: float

    @property
    def too_wide(self) -> bool:
        """Whether it counts as a miss whatever was measured; rounding is forgiven."""
        return self.high > WIDEST * self.low * (1 + 1e-9)


def share(part: int, whole: int) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole else None


def holds(predicted: Interval, measured: float) -> bool:
    """Whether the measured speedup lies inside the predicted range, and the range is narrow enough to say something."""
    return not predicted.too_wide and predicted.low <= measured <= predicted.high


def interval_score(low: float, high: float, measured: float, coverage: float = COVERAGE) -> float:
    """The interval score of a speedup's predicted range, on logarithms: 0 is best, there is no worst.

    Its width, and 2 / α for each unit by which the measured value lies outside, with α = 1 − coverage: Gneiting and
    Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102 (2007), equation 43. Logarithms make a
    speedup that is twice too high as wrong as one that is twice too low. Raises ValueError for what is no range.
    """
    if not 0 < low <= high or not measured > 0 or not 0 < coverage < 1:
        raise ValueError(f"no range of speedups: {low} to {high}, measured {measured}, coverage {coverage}")
    lower, upper, value = math.log(low), math.log(high), math.log(measured)
    outside = max(lower - value, 0.0) + max(value - upper, 0.0)
    return upper - lower + 2 / (1 - coverage) * outside


def mean(values: Sequence[float]) -> float | None:
    """Their mean; None of none."""
    return math.fsum(values) / len(values) if values else None


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            found[at] = (start + end) / 2 + 1
        start = end + 1
    return found


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, ties included.

    None for fewer than three pairs, and where all of one side are equal. Raises ValueError for unequal lengths.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values beside {len(second)}")
    if len(first) < 3:
        return None
    one, other = ranks(first), ranks(second)
    middle = (len(first) + 1) / 2
    products = math.fsum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    squares = math.fsum((a - middle) ** 2 for a in one) * math.fsum((b - middle) ** 2 for b in other)
    if not squares:
        return None
    return max(-1.0, min(1.0, products / math.sqrt(squares)))  # rounding may leave it beyond by an ulp
