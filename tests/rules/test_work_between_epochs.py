"""What a training does between its epochs is told of by where it was seen, and by what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.harness.layout import Pause, Site
from advisor.harness.timing import Interval, summarize
from advisor.rule import Advice, Finding
from rules.checkpoint_heavy import CheckpointHeavy
from rules.evaluation_heavy import EvaluationHeavy
from rules.work_between_epochs import WorkBetweenEpochs

RULE, EVALUATES, SAVES = WorkBetweenEpochs(), EvaluationHeavy(), CheckpointHeavy()
SCRIPT = "/nowhere/train.py"
LOOP = Site(SCRIPT, 40, function="main")
MAKES = Site(SCRIPT, 15, function="features")


def stopped(scene: Any, seconds: float = 0.3, cause: str = "epoch start", *sites: Site, loading: bool = False) -> Any:
    """Twenty steps of 10 ms, then one that takes so much longer, four times."""
    made = scene(10.0)
    made.operator("aten::addmm", 0.1, 9.9)
    clean = [Interval(0.01, frozenset[str](), 0.0, 32)] * 19
    summarize(made.record.timing, [*clean, Interval(0.01 + seconds, frozenset({cause} - {""}), 0.0, 32)] * 4, [])
    made.record.timing.pauses = [Pause(cause, list(sites or (MAKES, LOOP)), loading, 4 * seconds, [20, 40, 60, 80])]
    return made


def found(made: Any, folder: Path) -> list[Finding]:
    return list(RULE.check(made.evidence(folder)))


def test_the_share_is_of_the_time_and_the_place_the_innermost_line(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(stopped(scene), tmp_path)
    assert finding.site == MAKES and finding.evidence["share_of_time"] == pytest.approx(0.3 / 0.5)
    assert "at train.py:15, in features(), called at train.py:40: 60% of its time" in finding.summary
    assert finding.gain.likely == pytest.approx(0.5 / (0.2 + 0.05 * 0.3)) and finding.gain.high <= 2 * finding.gain.low
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "once, before the loop over epochs" in fix.text


@pytest.mark.parametrize(
    "other",
    [
        {"seconds": 0.03},
        {"loading": True},
        {"cause": "compilation"},
        {"sites": (Site(SCRIPT, 30, function="collect_episodes"), LOOP)},
    ],
    ids=["little", "workers that start", "the compiler", "a rollout"],
)
def test_what_is_told_of_elsewhere_or_makes_the_data_is_not(other: Any, scene: Any, tmp_path: Path) -> None:
    sites = other.pop("sites", ())
    made = stopped(scene, other.pop("seconds", 0.3), other.pop("cause", "epoch start"), *sites, **other)
    assert found(made, tmp_path) == []


def test_evaluations_are_no_other_work(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "evaluation")
    made.call("evaluation", 40, per_step=0.0)
    made.record.call_sites[-1].site = LOOP
    assert found(made, tmp_path) == []
    (told,) = EVALUATES.check(made.evidence(tmp_path))
    # Another line of that loop is what takes the time of these steps.
    made.record.call_sites[-1].site = Site(SCRIPT, 44, function="main")
    assert found(made, tmp_path) and not list(EVALUATES.check(made.evidence(tmp_path)))
    # Or half of it.
    made.record.timing.pauses += [Pause("evaluation", [Site(SCRIPT, 44, function="main")], False, 1.2, [20, 40])]
    (half,) = EVALUATES.check(made.evidence(tmp_path))
    assert half.evidence["evaluation_s"] == pytest.approx(told.evidence["evaluation_s"] / 2)


def test_a_framework_runs_everything_under_one_line(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene)
    made.call("evaluation", 40, per_step=0.0)
    made.record.call_sites[-1].site = LOOP
    (finding,) = found(made, tmp_path)
    assert finding.site == MAKES


def test_a_step_that_is_long_without_a_reason_counts_too(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "")
    timing = made.record.timing
    clean = [[0.01] * number for number in (21, 13, 30, 12)]  # at no regular distances
    timing.intervals = [each for some in clean for each in (*some, 0.31)]
    (finding,) = found(made, tmp_path)
    assert finding.evidence["steps_between"] == 20 and finding.evidence["share_of_time"] == pytest.approx(0.6)


def test_lightning_is_told_to_ask_once(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "epoch start", MAKES, Site(SCRIPT, 20, function="train_dataloader"), LOOP)
    made.call("Trainer", 39, per_step=0.0, values={"reload_dataloaders_every_n_epochs": 1})
    (finding,) = found(made, tmp_path)
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "reload_dataloaders_every_n_epochs=0" in fix.text


def test_a_step_that_others_held_up_is_no_stop(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "", Site(SCRIPT, 44, function="main"))
    clean = [[0.01] * number for number in (21, 13, 30, 12)]
    made.record.timing.intervals = [each for some in clean for each in (*some, 0.31)]
    made.record.timing.others_cores = 0.5
    assert found(made, tmp_path) == []
    made.record.timing.others_cores = 0.0
    assert found(made, tmp_path)
    made.call("backward", 44, per_step=1.0)
    made.record.call_sites[-1].site = Site(SCRIPT, 44, function="main")
    assert found(made, tmp_path) == []


def test_what_is_seen_once_says_nothing_of_how_often_it_comes(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene)
    made.record.timing.pauses[0].steps = [20]
    assert found(made, tmp_path) == []


def test_a_checkpoint_is_not_blamed_for_what_comes_behind_it(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "checkpoint", Site(SCRIPT, 17, function="summary"), Site(SCRIPT, 41, function="main"))
    made.call("checkpoint", 39, per_step=0.0)
    made.record.call_sites[-1].site = Site(SCRIPT, 39, end_line=40, function="main")
    (finding,) = found(made, tmp_path)
    assert finding.site is not None and finding.site.function == "summary"
    assert not list(SAVES.check(made.evidence(tmp_path)))
    made.record.timing.pauses[0].sites[-1] = Site(SCRIPT, 40, function="main")
    assert not found(made, tmp_path) and list(SAVES.check(made.evidence(tmp_path)))


def test_what_stands_below_eval_is_evaluated(scene: Any, tmp_path: Path) -> None:
    made = stopped(scene, 0.3, "evaluation", Site(SCRIPT, 22, function="metrics"), Site(SCRIPT, 122, function="main"))
    made.call("evaluation", 121, per_step=0.0)
    made.record.call_sites[-1].site = Site(SCRIPT, 121, function="main")
    assert not found(made, tmp_path) and list(EVALUATES.check(made.evidence(tmp_path)))


def test_a_sampler_that_asks_for_every_sample(scene: Any, tmp_path: Path) -> None:
    """A third of the seconds was seen in the steps' own work, which they would take anyway."""
    orders, backward = Site(SCRIPT, 8, function="__iter__"), Site(SCRIPT, 44, function="main")
    makes = [Site(SCRIPT, line, function="__getitem__") for line in (3, 4)]
    made = stopped(scene)
    made.call("backward", 44)
    made.record.call_sites[-1].site = backward
    steps = [20, 40, 60, 80]
    made.record.timing.pauses = [Pause("epoch start", [each, orders, LOOP], False, 0.4, steps) for each in makes]
    made.record.timing.pauses.append(Pause("epoch start", [backward], False, 0.4, steps))
    (finding,) = found(made, tmp_path)
    assert finding.site == orders and finding.evidence["stands_still_s"] == pytest.approx(0.3)
