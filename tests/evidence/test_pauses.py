"""What an operator took in one step only was not its work."""

from __future__ import annotations

import numpy as np

from advisor.evidence.facts import Steps
from advisor.evidence.pauses import without_pauses
from advisor.trace.tables import Spans

COUNT, EACH = 4, 3  # steps; operators in each


def spans(names: list[int]) -> tuple[Spans, Steps]:
    """Operators of 10 ns, 20 ns apart, in steps of 100 ns; one more before all steps."""
    start = np.array([-50] + [100 * step + 20 * number for step in range(COUNT) for number in range(EACH)], np.int64)
    none = np.full(len(start), -1, np.int64)
    codes = np.array([9, *names], np.int32)
    table = Spans(start, start + 10, codes, np.zeros(len(start), np.int32), none, none)
    begun = 100 * np.arange(COUNT, dtype=np.int64)
    return table, Steps(begun, begun + 100, np.arange(COUNT))


def test_a_pause_in_one_step_is_taken_off() -> None:
    table, steps = spans([1, 2, 3] * COUNT)
    own = np.array([500] + [10, 20, 30] * COUNT, np.int64)
    own[5] += 1000
    expected = np.array([500] + [10, 20, 30] * COUNT, np.float64)
    np.testing.assert_array_equal(without_pauses(table, own, steps), expected)


def test_what_is_slow_in_every_step_stays() -> None:
    table, steps = spans([1, 2, 3] * COUNT)
    own = np.array([500] + [10, 2000, 30] * COUNT, np.int64)
    np.testing.assert_array_equal(without_pauses(table, own, steps), own)


def test_steps_that_differ_are_left_as_measured() -> None:
    table, steps = spans([1, 2, 3] * (COUNT - 1) + [1, 2, 4])
    own = np.array([500] + [10, 20, 30] * COUNT, np.int64)
    own[5] += 1000
    np.testing.assert_array_equal(without_pauses(table, own, steps), own)


def test_fewer_operators_in_a_step_are_left_as_measured() -> None:
    table, steps = spans([1, 2, 3] * COUNT)
    keep = np.arange(len(table)) != 4
    table = Spans(*(getattr(table, column)[keep] for column in Spans.__dataclass_fields__))
    own = np.arange(len(table), dtype=np.int64) * 100
    np.testing.assert_array_equal(without_pauses(table, own, steps), own)


def test_no_steps() -> None:
    table, _steps = spans([1, 2, 3] * COUNT)
    nothing = np.empty(0, np.int64)
    own = np.arange(len(table), dtype=np.int64)
    np.testing.assert_array_equal(without_pauses(table, own, Steps(nothing, nothing, nothing)), own)
