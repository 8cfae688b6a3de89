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


def test_what_was_seen_twice_says_nothing_of_how_often_it_comes(scene: Any, tmp_path: Path) -> None:
    assert found(evaluating(scene, 5.0, 60.0, every=10, count=2), tmp_path) == []


def test_an_evaluation_in_every_step_is_a_part_of_it(scene: Any, tmp_path: Path) -> None:
    made = evaluating(scene, 5.0, 60.0, every=1, count=20)
    assert made.record.timing.evaluation_every is None
    assert found(made, tmp_path) == []
