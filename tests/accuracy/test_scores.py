"""The accuracy's formulas, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accuracy.scores import Interval, holds, interval_score, mean, ranks, share, spearman

speedups = st.floats(0.01, 100)
values = st.lists(st.integers(-50, 50), min_size=3, max_size=12)


def test_range_holds_what_lies_in_it() -> None:
    assert holds(Interval(1.2, 1.4, 1.6), 1.2)
    assert holds(Interval(1.2, 1.4, 1.6), 1.6)
    assert not holds(Interval(1.2, 1.4, 1.6), 1.61)
    assert not holds(Interval(1.2, 1.4, 1.6), 1.19)


def test_range_wider_than_twice_holds_nothing() -> None:
    assert holds(Interval(1.0, 1.5, 2.0), 1.5)
    assert not holds(Interval(1.0, 1.5, 2.01), 1.5)


def test_score_of_a_range_that_holds_is_its_width() -> None:
    # log 2 − log 1
    assert interval_score(1.0, 2.0, 1.5) == pytest.approx(math.log(2))
    assert interval_score(1.3, 1.3, 1.3) == 0


def test_score_adds_what_lies_outside_weighed_by_the_coverage() -> None:
    # e⁰ to e¹, measured e³: width 1, 2 beyond it; α = 0.5: 1 + 2 / 0.5 · 2 = 9
    assert interval_score(1.0, math.e, math.e**3, coverage=0.5) == pytest.approx(9.0)
    # below it the same: measured e⁻²
    assert interval_score(1.0, math.e, math.e**-2, coverage=0.5) == pytest.approx(9.0)
    # α = 0.3: 1 + 2 / 0.3 · 0.3 = 3
    assert interval_score(1.0, math.e, math.e**1.3) == pytest.approx(3.0)


@pytest.mark.parametrize("wrong", [(2.0, 1.0, 1.5), (0.0, 1.0, 0.5), (1.0, 2.0, 0.0), (1.0, float("nan"), 1.5)])
def test_score_of_what_is_no_range_is_an_error(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="no range"):
        interval_score(*wrong)


@given(low=speedups, width=st.floats(1, 3), measured=speedups, factor=st.floats(0.1, 10))
def test_score_does_not_depend_on_what_the_speedup_is_of(
    low: float, width: float, measured: float, factor: float
) -> None:
    """Twice as fast as half is as wrong as half of twice: only ratios count."""
    score = interval_score(low, low * width, measured)
    assert score >= math.log(width) - 1e-9
    assert interval_score(low * factor, low * width * factor, measured * factor) == pytest.approx(score, abs=1e-6)
    assert interval_score(1 / (low * width), 1 / low, 1 / measured) == pytest.approx(score, abs=1e-6)


def test_ranks_of_equal_values_are_the_mean_of_theirs() -> None:
    assert ranks([10, 20, 20, 5]) == [2.0, 3.5, 3.5, 1.0]
    assert ranks([]) == []


def test_rank_correlation_by_hand() -> None:
    # Without ties 1 − 6 Σd² / n(n² − 1): d = 0, 1, −1, 0 gives 1 − 12 / 60.
    assert spearman([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    # Ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4: 4.5 / √(4.5 · 5).
    assert spearman([1, 2, 2, 4], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(22.5))
    assert spearman([1, 2, 3], [6, 5, 4]) == pytest.approx(-1.0)


def test_rank_correlation_is_none_where_there_is_none() -> None:
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    with pytest.raises(ValueError, match="beside"):
        spearman([1, 2, 3], [1, 2])


@given(values)
def test_rank_correlation_knows_the_order_alone(first: list[int]) -> None:
    second = [value**3 + 7 for value in first]
    if len(set(first)) > 1:
        assert spearman(first, second) == pytest.approx(1.0)
        assert spearman(first, [-value for value in second]) == pytest.approx(-1.0)


def test_shares_and_means_of_nothing_are_none() -> None:
    assert share(1, 4) == 0.25
    assert share(0, 0) is None
    assert mean([1.0, 2.0]) == 1.5
    assert mean([]) is None
