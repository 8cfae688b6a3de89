"""Evaluations are reported by their share of the time, where they come regularly and often enough to be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.harness.timing import Interval, summarize
from advisor.rule import Advice, Finding
from advisor.rulebook import load_rules

(RULE,) = [each for each in load_rules() if each.id == "evaluation-heavy"]


def evaluating(scene: Any, step_ms: float, evaluation_ms: float, every: int, count: int = 4) -> Any:
    """Clean steps with an evaluation after each `every` of them, summed up as the harness does."""
    made = scene(step_ms)
    made.operator("aten::addmm", 0.1, step_ms - 0.1)
    rows = []
    for number in range(1, every * count + 1):
        evaluates = number % every == 0
        seconds = (step_ms + evaluation_ms * evaluates) / 1e3
        rows.append(Interval(seconds, frozenset({"evaluation"} if evaluates else ()), 0.0, 32))
    summarize(made.record.timing, rows, [])
    made.call("evaluation", 23, per_step=0.0)
    return made


def found(made: Any, folder: Path) -> list[Finding]:
    return list(RULE.check(made.evidence(folder)))


def test_share_and_gain_come_from_the_seconds_beside_the_steps(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(evaluating(scene, 5.0, 60.0, every=10), tmp_path)
    assert finding.site is not None and finding.site.line == 23
    assert finding.evidence["evaluation_share"] == pytest.approx(60 / 110)
    # 110 ms for ten steps; with 5 % of the time for evaluations 50 / 0.95
    assert finding.gain.likely == pytest.approx(110 / (50 / 0.95), rel=0.02)
    assert finding.gain.low < finding.gain.likely < finding.gain.high <= 2 * finding.gain.low
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "every 230 steps" in fix.text


def test_evaluation_of_nearly_all_the_time_keeps_its_range(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(evaluating(scene, 1.0, 500.0, every=4), tmp_path)
    assert 1 < finding.gain.low < finding.gain.likely <= finding.gain.high <= 2 * finding.gain.low


def test_an_evaluation_after_each_epoch_is_not_reported(scene: Any, tmp_path: Path) -> None:
    assert found(evaluating(scene, 5.0, 40.0, every=78), tmp_path) == []


@pytest.mark.parametrize(("imports", "reported"), [("import gymnasium as gym", False), ("import torch", True)])
def test_rollouts_are_no_evaluation(imports: str, reported: bool, scene: Any, tmp_path: Path) -> None:
    made = evaluating(scene, 5.0, 60.0, every=10)
    script = tmp_path / "ppo.py"
    script.write_text(f"{imports}\n")
    made.record.script = str(script)
    assert bool(found(made, tmp_path)) is reported


def test_what_was_seen_twice_says_nothing_of_how_often_it_comes(scene: Any, tmp_path: Path) -> None:
    assert found(evaluating(scene, 5.0, 60.0, every=10, count=2), tmp_path) == []


def test_an_evaluation_in_every_step_is_a_part_of_it(scene: Any, tmp_path: Path) -> None:
    made = evaluating(scene, 5.0, 60.0, every=1, count=20)
    assert made.record.timing.evaluation_every is None
    assert found(made, tmp_path) == []


def in_each_step(scene: Any, loaders: bool = True, calls: float = 1.0) -> Any:
    """A step of 10 ms: 2 of forward, 1 of backward, then 6 in which the model is evaluated, in three batches."""
    made = scene(10.0)
    made.each("user_annotation", "advisor.forward", 0.0, 2.0)
    for number in range(3):
        node = {"Sequence number": number}
        made._add("cpu_op", "aten::addmm", number, 0.1, 1.9, **node)
        made._add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", number, 2.0, 3.0, **node)
    for number in range(3):
        made.each("user_annotation", "advisor.forward", 4.0 + 2 * number, 5.9 + 2 * number)
        made.operator("aten::addmm", 4.1 + 2 * number, 5.8 + 2 * number)
    train = made.loader(0.0, 0.1, 0.1)
    train.epochs, train.batches = 2, 60
    if loaders:
        held_out = made.loader(0.0, 0.1, 0.1)
        held_out.epochs, held_out.batches = 130, 3
    made.call("evaluation", 23, per_step=calls)
    made.call("Module.eval", 40, per_step=calls, module="Net")
    return made


@pytest.mark.parametrize("timed", [100, 400])
def test_an_evaluation_in_each_step_is_a_part_of_it(timed: int, scene: Any, tmp_path: Path) -> None:
    made = in_each_step(scene)
    # Of a short script the times may be those of a first run with more steps.
    made.record.steps, made.record.timing.steps = 131, timed
    (finding,) = found(made, tmp_path)
    assert finding.site is not None and finding.site.line == 23
    assert finding.evidence["evaluation_share"] == pytest.approx(0.59, abs=0.01)
    assert finding.gain.likely == pytest.approx(10 / (4.1 / 0.95), rel=0.05)


@pytest.mark.parametrize(
    "facts", [pytest.param({"loaders": False}, id="a-rollout"), pytest.param({"calls": 0.1}, id="now-and-then")]
)
def test_what_makes_the_next_batch_is_no_evaluation(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(in_each_step(scene, **facts), tmp_path) == []


METRICS = "def metrics(given):\n    return {{'right': (given[0].{takes} == given[1]).mean()}}\n"
TRAINS = "trainer = Trainer(model, args, compute_metrics=metrics{more})\ntrainer.train()\n"


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"eval_strategy": "steps", "eval_steps": 10}, True),
        ({"evaluation_strategy": "steps", "eval_steps": 10}, True),
        ({"eval_strategy": "steps", "eval_steps": None, "logging_steps": 10}, True),
        ({"eval_strategy": "epoch", "eval_steps": 10}, False),
        ({"eval_strategy": "steps", "eval_steps": 0.1}, False),
        ({"eval_strategy": "steps"}, False),
    ],
)
def test_what_a_trainer_is_told_need_not_be_seen_thrice(
    values: dict[str, Any], reported: bool, scene: Any, tmp_path: Path
) -> None:
    made = evaluating(scene, 5.0, 60.0, every=10, count=1)
    made.call("TrainingArguments", 7, per_step=0.0, values=values)
    assert [each.evidence["steps_between_evaluations"] for each in found(made, tmp_path)] == [10] * reported


@pytest.mark.parametrize(
    ("takes", "more", "said"),
    [
        ("argmax(-1)", "", True),
        ("argmax(-1)", ", preprocess_logits_for_metrics=largest", False),
        ("max(-1)", "", False),
    ],
)
def test_logits_of_which_metrics_take_the_largest_need_not_be_kept(
    takes: str, more: str, said: bool, scene: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(METRICS.format(takes=takes) + TRAINS.format(more=more))
    made = evaluating(scene, 5.0, 60.0, every=10, count=1)
    made.call("TrainingArguments", 7, per_step=0.0, values={"eval_strategy": "steps", "eval_steps": 10})
    made.record.modules = {str(script): "__main__"}
    (finding,) = found(made, tmp_path)
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and ("metrics() takes the largest" in fix.text) is said


@pytest.mark.parametrize("takes", ["argmax(-1)", "max(-1)"])
def test_logits_need_not_be_kept_however_seldom_evaluations_are(takes: str, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(METRICS.format(takes=takes) + TRAINS.format(more=""))
    made = evaluating(scene, 5.0, 60.0, every=10, count=1)
    made.call("TrainingArguments", 7, per_step=0.0, values={"eval_strategy": "steps", "eval_steps": 10})
    made.record.modules = {str(script): "__main__"}
    made.record.total_steps = 20  # two evaluations, of which none is to go
    reported = found(made, tmp_path)
    assert len(reported) == (takes == "argmax(-1)")
    for finding in reported:
        fix = RULE.fix(finding, Sources())
        assert isinstance(fix, Advice) and fix.text.startswith("metrics() takes the largest")
        assert finding.gain.likely == pytest.approx(110 / 80, rel=0.01)
