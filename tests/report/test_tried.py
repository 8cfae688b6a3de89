"""How trials are said: times, intervals, drifts, and which values stand side by side."""

from __future__ import annotations

import math

import msgspec
import pytest

from advisor.findings import Numerics, Outcome
from advisor.report import tried
from advisor.report.waterfall import waterfall


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (220, "3:40"), (3725, "1:02:05"), (-1, "0:00")]
)
def test_times_are_read_like_a_clock(seconds: float, text: str) -> None:
    assert tried.clock(seconds) == text


def test_what_is_used_of_the_budget() -> None:
    assert tried.used(220, 1200) == "3:40 of 20:00 used"
    assert tried.used(220, None) == "3:40 used"


def test_a_speedup_without_an_interval_has_no_brackets() -> None:
    assert tried.ratio(2.1, 2.05, 2.16) == "2.10× (2.05–2.16)"
    assert tried.ratio(2.1, 0.0, math.inf) == "2.10×"
    assert tried.ratio(12.34, 11.0, 13.0) == "12.3× (11.0–13.0)"


def test_exact_fixes_within_their_tolerance_need_no_curves(tried_outcome: Outcome) -> None:
    shown = [trial.rule for trial in tried_outcome.trials if tried.side_by_side(trial)]
    assert shown == ["batch-size"]


@pytest.mark.parametrize("after", [[2.3, None, 2.1], [9.3, 9.2, 9.1]])
def test_where_the_check_did_not_pass_the_values_are_shown(tried_outcome: Outcome, after: list[float | None]) -> None:
    drift = None if None in after else 3.0
    numerics = Numerics("loss", [2.3, 2.2, 2.1], after, drift, 0.001, 0.0)
    trial = msgspec.structs.replace(tried_outcome.trials[0], status="failed", numerics=numerics)
    compared = tried.side_by_side(trial)
    assert compared
    assert [row[2] for row in tried.excerpt(compared, 8) if row] == [tried.amount(value) for value in after]


def test_the_first_and_the_last_values_are_shown() -> None:
    values: list[float | None] = [float(index) for index in range(20)]
    rows = tried.excerpt(Numerics("loss", values, values), 5)
    assert [row[0] if row else "…" for row in rows] == ["1", "2", "3", "…", "19", "20"]


def test_bars_end_where_the_trial_s_own_runs_did(tried_outcome: Outcome) -> None:
    shape = waterfall(tried_outcome)
    assert [(bar.start, bar.amount) for bar in shape.bars] == [
        (None, 400.0),
        (398.0, 838.0),
        (840.0, 1233.0),
        (400.0, 1233.0),
    ]
    first = shape.bars[1]
    assert first.predicted == (pytest.approx(398 * 1.9), pytest.approx(398 * 2.5))
    assert first.low == pytest.approx(838 * 2.05 / 2.1) and first.high == pytest.approx(838 * 2.16 / 2.1)


def test_step_times_shrink_and_so_do_their_predictions(tried_outcome: Outcome) -> None:
    outcome = msgspec.structs.replace(
        tried_outcome, baseline_samples_per_s=None, trials=tried_outcome.trials[:1], final_ms=38.2
    )
    bar = waterfall(outcome).bars[1]
    assert (bar.start, bar.amount) == (80.4, 38.2)
    assert bar.predicted == (pytest.approx(80.4 / 2.5), pytest.approx(80.4 / 1.9))
    assert bar.low == pytest.approx(38.2 * 2.1 / 2.16) and bar.high == pytest.approx(38.2 * 2.1 / 2.05)


def test_a_huge_prediction_does_not_make_the_bars_tiny(tried_outcome: Outcome) -> None:
    wild = msgspec.structs.replace(tried_outcome, speedup=msgspec.structs.replace(tried_outcome.speedup, high=1e9))
    assert waterfall(wild).top == pytest.approx(1.5 * 1233)
