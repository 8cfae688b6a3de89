"""What the intervals between steps tell."""

from __future__ import annotations

import pytest

from advisor.harness.layout import Loader, Timing
from advisor.harness.timing import Interval, pauses_to_come, period, summarize, whole_period


@pytest.mark.parametrize(
    ("intervals", "every"),
    [
        ([2.0, 2.0, 2.0, 2.0, 100.0] * 8, 5),
        ([2.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0, 140.0] * 5, 8),  # a hiccup is no period
        ([33.0, 31.0, 32.0, 108.0] * 6, 4),
        (([1.8] * 319 + [500.0]) * 4, 320),  # PPO's own numbers
        (([1.8] * 499 + [500.0]) * 4, 1),
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


@pytest.mark.parametrize(
    ("short", "long", "steps", "every"),
    [(0.05, 2.0, 16, 16), (0.05, 3.0, 16, 1), (2e-3, 0.5, 320, 320), (2e-3, 1.0, 320, 1), (2e-3, 0.6, 64, 64)],
)
def test_a_long_period_is_not_measured_whole(short: float, long: float, steps: int, every: int) -> None:
    intervals = ([short] * (steps - 1) + [long]) * 4
    assert period(intervals) == steps and whole_period(intervals) == every


@pytest.mark.parametrize(
    ("samples", "loaders", "per_step"),
    [
        ([32] * 20, 1, 32.0),
        ([32] * 19 + [7], 1, 32.0),  # a last batch
        ([0] + [32] * 18 + [64], 1, 32.0),  # fetched ahead
        ([20, 30, 40, 50] * 5, 1, 35.0),  # batches of as many tokens, say
        ([64, 0, 0, 0] * 5, 1, 16.0),  # four steps on each batch
        ([1, 40] * 9, 0, None),  # a model that is called for a query, then for forty passages
        ([1, 40] * 9 + [1], 0, None),
        ([32] * 9 + [7], 0, 32.0),
        ([0] * 9, 1, None),
    ],
)
def test_samples_of_a_step(samples: list[int], loaders: int, per_step: float | None) -> None:
    timing = Timing()
    summarize(timing, [Interval(0.1, frozenset(), 0.0, each) for each in samples], [Loader(trains=True)] * loaders)
    assert timing.samples_per_step == per_step


def stopped(cause: str, seconds: float, every: int, count: int) -> list[Interval]:
    """Steps of a tenth of a second, some of which are stopped for so long."""
    paused = [number % every == 0 for number in range(1, every * count + 2)]
    return [Interval(0.1 + seconds * each, frozenset({cause} if each else ()), 0.0, 8) for each in paused]


@pytest.mark.parametrize(
    ("cause", "seconds", "count", "awaits"),
    [
        ("evaluation", 2.0, 1, True),
        ("checkpoint", 2.0, 2, True),
        ("compilation", 2.0, 2, True),
        ("compilation", 2.0, 1, False),  # of another shape, say
        ("evaluation", 2.0, 3, False),  # seen often enough
        ("evaluation", 0.05, 2, False),  # and so little is no matter
        ("evaluation", 2.0, 0, False),
        ("epoch start", 2.0, 2, True),
    ],
)
def test_what_stops_the_steps_for_long_is_waited_for(cause: str, seconds: float, count: int, awaits: bool) -> None:
    assert pauses_to_come(stopped(cause, seconds, 20, count)) is awaits


def test_what_comes_with_each_step_is_not_waited_for() -> None:
    assert not pauses_to_come([Interval(0.1, frozenset({"checkpoint"}), 0.0, 8)] * 2)
