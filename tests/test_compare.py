"""Telling two scripts apart by their runs – and not telling a script apart from itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from advisor import compare
from advisor.compare import compare_groups, compare_pairs, cost, costs, enough, group_costs, verdict
from advisor.errors import AdvisorError
from advisor.harness.layout import CallSite, Options, RunRecord, Site, Timing
from tests.benchmarks.compare_with_itself import KINDS, MOST_PAIRS, RESULTS, session, sessions
from tests.benchmarks.compare_with_itself import record as record_runs
from tests.conftest import PYTHON

MIN_GAIN = 0.02
SESSIONS = 1000


def record(step_s: float | None, samples: float | None = None) -> RunRecord:
    return RunRecord(script="train.py", timing=Timing(step_s=step_s, samples_per_step=samples))


# Costs.


def test_the_cost_is_per_step_while_the_steps_are_alike() -> None:
    assert costs(record(0.2, 32), record(0.1, 32)) == (0.2, 0.1)
    assert costs(record(0.2), record(0.1, 64)) == (0.2, 0.1)


def test_the_cost_is_per_sample_when_the_batch_size_changed() -> None:
    assert costs(record(0.2, 32), record(0.3, 64)) == (0.2 / 32, 0.3 / 64)


def test_short_epochs_cost_their_starts() -> None:
    def run(starts: int) -> RunRecord:
        each = record(0.1, 32)
        each.timing.steps = 40 - starts
        each.timing.aside, each.timing.aside_counts = {"epoch start": 1.0 * starts}, {"epoch start": starts}
        return each

    assert costs(run(4), run(2)) == (pytest.approx(0.2), pytest.approx(0.15))
    assert costs(run(1), run(1)) == (0.1, 0.1), "chance, in a long epoch"
    assert costs(run(2), run(0)) == (0.1, 0.1), "one side does not say what they cost"


def test_groups_are_in_one_unit() -> None:
    before, after = group_costs([record(0.2, 32), record(0.21, 32)], [record(0.3, 64)])
    assert before == [0.2 / 32, 0.21 / 32]
    assert after == [0.3 / 64]
    assert group_costs([record(0.2, 32), record(0.21)], [record(0.3, 64)]) == ([0.2, 0.21], [0.3])


@pytest.mark.parametrize("step_s", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_run_without_a_step_time_is_an_error_that_says_so(step_s: float | None) -> None:
    with pytest.raises(AdvisorError, match=r"run of train\.py .*profile the script again"):
        cost(record(step_s))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_none_is_an_error(wrong: float) -> None:
    with pytest.raises(AdvisorError, match="cannot be compared"):
        compare_pairs([(1.0, 1.0), (1.0, wrong)])
    with pytest.raises(AdvisorError, match="cannot be compared"):
        compare_groups([wrong], [1.0])


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(AdvisorError, match="no run"):
        compare_pairs([])
    with pytest.raises(AdvisorError, match="no run"):
        compare_groups([1.0], [])


# Student's t: the values of tables (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 5, 2.571),
        (0.95, 10, 2.228),
        (0.95, 30, 2.042),
        (0.95, 100, 1.984),
        (0.99, 1, 63.657),
        (0.99, 2, 9.925),
        (0.99, 7, 3.499),
        (0.98, 9, 2.821),
        (0.998, 3, 10.215),
    ],
)
def test_quantiles_of_students_t(confidence: float, freedom: int, expected: float) -> None:
    assert compare.t_quantile(confidence, freedom) == pytest.approx(expected, abs=6e-4)


# Intervals.


def test_pairs_by_hand() -> None:
    ratios = [1.30, 1.34, 1.26, 1.31]
    result = compare_pairs([(ratio * 0.1, 0.1) for ratio in ratios])
    logs = np.log(ratios)
    half = compare.t_quantile(compare.LOOK_CONFIDENCE, 3) * logs.std(ddof=1) / 2
    assert result.speedup == pytest.approx(math.exp(logs.mean()))
    assert result.low == pytest.approx(math.exp(logs.mean() - half))
    assert result.high == pytest.approx(math.exp(logs.mean() + half))
    assert (result.runs, result.pairs, result.assumed) == ((4, 4), 4, False)
    assert result.spread == pytest.approx(logs.std(ddof=1) / math.sqrt(2))
    assert verdict(result, MIN_GAIN) == "kept"


def test_groups_by_hand() -> None:
    """Three runs and two: a two-sample t with one spread for both."""
    before, after = [1.00, 1.02, 0.98], [1.10, 1.13]
    one, other = np.log(before), np.log(after)
    pooled = math.sqrt((one.var() * 3 + other.var() * 2) / 3)
    half = 3.18245 * pooled * math.sqrt(1 / 3 + 1 / 2)
    result = compare_groups(before, after)
    assert math.log(result.low) == pytest.approx(one.mean() - other.mean() - half, abs=1e-6)
    assert math.log(result.high) == pytest.approx(one.mean() - other.mean() + half, abs=1e-6)
    assert result.different


def test_what_all_runs_share_does_not_matter_to_pairs() -> None:
    """A machine that is twice as slow in the second hour slows both sides of a pair."""
    result = compare_pairs([(1.0, 0.8), (2.0, 1.61), (1.5, 1.19), (4.0, 3.2)])
    assert verdict(result, MIN_GAIN) == "kept"


def test_the_direction_is_symmetric() -> None:
    pairs = [(1.0, 0.9), (1.02, 0.93), (0.98, 0.9)]
    there, back = compare_pairs(pairs), compare_pairs([(after, before) for before, after in pairs])
    assert there.speedup == pytest.approx(1 / back.speedup)
    assert there.low == pytest.approx(1 / back.high)
    assert enough(there, MIN_GAIN) == enough(back, MIN_GAIN)


def test_three_runs_that_are_alike_by_chance_are_not_taken_at_their_word() -> None:
    result = compare_pairs([(1.0, 0.995)] * 3)
    assert result.spread == compare.SPREAD_FLOOR
    assert not result.different


@pytest.mark.parametrize("pairs", [1, 2])
def test_fewer_than_three_pairs_are_never_kept_and_their_spread_is_said_to_be_assumed(pairs: int) -> None:
    result = compare_pairs([(2.0, 1.0)] * pairs)
    assert result.assumed
    assert result.low < 2.0 < result.high
    assert result.high / result.low > 1.15
    assert verdict(result, MIN_GAIN) == "inconclusive"
    assert not enough(result, MIN_GAIN)


def test_one_run_against_three_takes_its_spread_from_the_three() -> None:
    result = compare_groups([1.0], [1.10, 1.11, 1.12])
    assert not result.assumed
    assert result.high < 1
    assert compare_groups([1.0], [1.2]).assumed


def test_a_gain_smaller_than_asked_for_is_reverted_and_a_noisy_one_inconclusive() -> None:
    assert verdict(compare_pairs([(1.0, 0.999), (1.0, 1.0), (1.0, 1.001)]), MIN_GAIN) == "reverted"
    assert verdict(compare_pairs([(1.0, 1.2), (1.0, 1.21), (1.0, 1.19)]), MIN_GAIN) == "reverted"
    noisy = compare_pairs([(1.0, 0.8), (1.0, 1.1), (1.0, 0.9), (1.0, 1.05)])
    assert verdict(noisy, MIN_GAIN) == "inconclusive"
    assert noisy.smallest_gain(MIN_GAIN) > 1.2


def test_a_gain_of_the_smallest_size_is_just_told() -> None:
    """What `smallest_gain` promises: the same runs, that much faster, end at the edge of being kept."""
    noise = [0.03, -0.02, 0.01, -0.02]
    gain = compare_pairs([(math.exp(each), 1.0) for each in noise]).smallest_gain(MIN_GAIN)
    assert verdict(compare_pairs([(math.exp(each) * gain * 1.001, 1.0) for each in noise]), MIN_GAIN) == "kept"
    assert verdict(compare_pairs([(math.exp(each) * gain * 0.999, 1.0) for each in noise]), MIN_GAIN) == "inconclusive"


# A script compared with itself, in simulated sessions.


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.08])
@pytest.mark.parametrize("runs", KINDS)
def test_a_script_is_not_told_apart_from_itself(
    runs: Callable[[np.random.Generator, tuple[int, int]], np.ndarray], spread: float
) -> None:
    random = np.random.default_rng(7)
    costs = np.exp(runs(random, (SESSIONS, 2 * MOST_PAIRS)) * spread)
    results = [session(each.tolist(), MIN_GAIN) for each in costs]
    kept = sum(verdict(result, MIN_GAIN) == "kept" for result in results) / SESSIONS
    different = sum(result.different for result in results) / SESSIONS
    # The rates promised, and three standard deviations of a simulation of this size.
    assert kept <= 0.025
    assert different <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / SESSIONS)


@pytest.mark.parametrize(("spread", "gain", "share"), [(0.003, 1.05, 0.95), (0.01, 1.1, 0.95), (0.03, 1.3, 0.95)])
def test_a_gain_well_above_the_spread_is_found(spread: float, gain: float, share: float) -> None:
    random = np.random.default_rng(7)
    costs = np.exp(random.normal(size=(300, 2 * MOST_PAIRS)) * spread).tolist()
    verdicts = [verdict(session(each, MIN_GAIN, gain), MIN_GAIN) for each in costs]
    assert verdicts.count("kept") >= share * len(verdicts)
    backwards = [verdict(session(each, MIN_GAIN, 1 / gain), MIN_GAIN) for each in costs]
    assert backwards.count("reverted") >= share * len(backwards)


def test_the_interval_of_groups_covers_the_truth() -> None:
    """Three runs against one, and against three, 20 % slower in truth."""
    random = np.random.default_rng(7)
    for earlier in (1, 3):
        logs = random.normal(size=(SESSIONS, earlier + 3)) * 0.03
        results = [compare_groups(np.exp(each[:earlier]).tolist(), np.exp(each[earlier:]).tolist()) for each in logs]
        wrong = sum(result.different for result in results) / SESSIONS
        assert wrong == pytest.approx(0.05, abs=0.02)


@pytest.mark.skipif(not RESULTS.exists(), reason="no runs were recorded yet (tests/benchmarks/compare_with_itself.py)")
def test_recorded_runs_of_one_script_are_not_told_apart() -> None:
    """Sessions made of consecutive recorded runs: what drifts on a real machine is in them."""
    steps = json.loads(RESULTS.read_text())["step_s"]
    results = sessions(steps, MIN_GAIN)
    assert results
    assert sum(not result.different for result in results) >= 0.95 * len(results)


FIXED_WORK = """\
import time
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100000):
    time.sleep(0.01)  # the same in every run, whatever else the machine does
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_real_runs_of_one_script_are_not_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FIXED_WORK)
    options = Options(windows="timing", seed=0, min_seconds=0.5, max_seconds=5.0, settle_max_seconds=5.0)
    result = session(record_runs(script, 2 * compare.LEAST_PAIRS, options, PYTHON), min_gain=1.0)
    assert result.pairs == compare.LEAST_PAIRS
    assert verdict(result, MIN_GAIN) != "kept"
    assert not result.different or abs(result.speedup - 1) < MIN_GAIN


def saved(count: int, seconds: float, step_s: float = 0.1, steps: int = 100) -> RunRecord:
    made = record(step_s)
    made.timing.steps = steps
    made.timing.aside = {"checkpoint": seconds} if count else {}
    made.timing.aside_counts = {"checkpoint": count} if count else {}
    return made


def test_checkpoints_count_where_one_side_saves_them_much_more_often() -> None:
    often, seldom = [saved(20, 4.0), saved(20, 4.2)], [saved(1, 0.2), saved(0, 0.0)]
    (one, other), (third, fourth) = group_costs(often, seldom)
    assert one == pytest.approx(0.1 + 4.0 / 120) and other == pytest.approx(0.1 + 4.2 / 120)
    assert third == pytest.approx(0.1 + 0.2 / 101) and fourth == pytest.approx(0.1)
    # Both alike: what a disk takes says nothing of their difference. Two of them may be chance.
    assert group_costs(often, often) == ([0.1, 0.1], [0.1, 0.1])
    assert group_costs([saved(2, 1.0)], [saved(0, 0.0)]) == ([0.1], [0.1])


def test_compilations_count_where_a_script_makes_dynamo_forget() -> None:
    def compiled(count: int, resets: bool) -> RunRecord:
        made = saved(0, 0.0)
        made.timing.aside, made.timing.aside_counts = {"compilation": 2.0 * count}, {"compilation": count}
        made.call_sites = [CallSite("dynamo.reset", Site("train.py", 9))] if resets else []
        return made

    (before,), (after,) = group_costs([compiled(5, True)], [compiled(0, False)])
    assert before == pytest.approx(0.1 + 10.0 / 105) and after == pytest.approx(0.1)
    # What is compiled for the first time, because a trial does so, is over once.
    assert group_costs([compiled(0, False)], [compiled(5, False)]) == ([0.1], [0.1])
