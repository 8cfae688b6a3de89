"""A predicted gain as measurements come out: a little larger, in a range as wide as they differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rule import WIDEST, Gain


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (Gain(1.00, 1.12, 1.29), (1.00, 1.13, 1.30)),  # wide enough already
        (Gain(1.87, 2.07, 2.18), (1.55, 2.23, 2.98)),
        (Gain(1.08, 1.74, 2.15), (1.30, 1.84, 2.60)),  # as wide as allowed, and askew
        (Gain(8.0, 10.0, 16.0), (8.13, 11.50, 16.26)),
        (Gain(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),  # of memory
        (Gain(0.8, 0.9, 1.1), (0.8, 0.9, 1.1)),
    ],
)
def test_ranges_are_as_wide_as_measurements_differ(gain: Gain, expected: tuple[float, float, float]) -> None:
    measured = gain.as_measured()
    assert (measured.low, measured.likely, measured.high) == pytest.approx(expected, abs=0.01)
    assert measured.basis == gain.basis


@given(st.floats(0.1, 50.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_ranges_hold_the_likely_gain_and_stay_narrow(likely: float, below: float, above: float) -> None:
    gain = Gain(likely / below, likely, likely * above).as_measured()
    assert gain.low <= gain.likely <= gain.high
    assert likely <= 1.0 or gain.high <= WIDEST * gain.low * 1.0001
