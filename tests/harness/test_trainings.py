"""Scripts that train one model after another: which of the trainings is measured, and that every run agrees on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.harness.layout import RunRecord
from advisor.harness.steps import StepFinder
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK, SCRIPTS

pytestmark = pytest.mark.oldest


def run(
    run_dir: Path, first: int, second: int, training: int | None = None, windows: str = "all", total: int = 0
) -> RunRecord:
    command = Command(
        str(SCRIPTS / "two_trainings.py"),
        argv=("--first", str(first), "--second", str(second)),
        python=PYTHON,
        cwd=str(run_dir.parent),
    )
    # Not to be filled by a hundred steps, however slow the machine.
    options = replace(QUICK, min_seconds=60.0, max_seconds=60.0, training=training, windows=windows, total_steps=total)
    return measure(command, run_dir, options).record


def test_critic_and_generator_are_one_training() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    for _ in range(20):
        for key in ("critic", "critic", "generator"):
            finder.optimizer_step(key)
    assert finder.training == 1  # from the generator's first step on


def test_second_optimizer_that_goes_on_alone_is_another_training() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    for key in ("teacher",) * 30 + ("student",) * 30:
        finder.optimizer_step(key)
    assert finder.training == 1


@pytest.mark.slow
@pytest.mark.sessions
def test_run_with_shorter_windows_is_of_the_training_whose_steps_were_counted(tmp_path: Path) -> None:
    record = run(tmp_path / "run", 100, 60)
    assert record.complete and record.training == 1
    assert any("was run again with shorter windows" in note for note in record.notes)
    assert sum("began anew" in note for note in record.notes) == 0  # the second run waited for its training
    assert record.total_steps == 60
    boundary = [optimizer for optimizer in record.optimizers if optimizer.boundary]
    assert len(boundary) == 1 and boundary[0].steps <= 60
    assert record.losses and max(record.losses) < 50  # the first training's begin at 10,000
    assert [window.name for window in record.windows] == ["timing", "profile", "detail"]


@pytest.mark.slow
@pytest.mark.sessions
def test_last_training_that_is_short_is_not_the_one_to_measure(tmp_path: Path) -> None:
    record = run(tmp_path / "run", 100, 4)
    assert record.complete and record.training == 0 and record.total_steps == 100
    assert min(record.losses) > 100


@pytest.mark.slow
@pytest.mark.sessions
def test_other_runs_measure_the_training_that_they_are_asked_for(tmp_path: Path) -> None:
    # A window that a training fills is complete; one that its training is too short for is as long as that.
    first = run(tmp_path / "first", 60, 3000, training=0, windows="timing")
    # Where the machine was busy, few of the 60 steps were undisturbed: a run cut to that many follows.
    assert first.training == 0 and (first.total_steps or first.steps) == 60 and 0 < first.timing.steps <= 60
    assert min(first.losses) > 1000
    second = run(tmp_path / "second", 60, 80, training=1, windows="timing")
    assert second.training == 1 and 0 < second.timing.steps < 80 and max(second.losses) < 50
    assert not any("began anew" in note for note in second.notes)


@pytest.mark.slow
@pytest.mark.sessions
def test_script_without_that_training_is_measured_all_the_same(tmp_path: Path) -> None:
    record = run(tmp_path / "run", 80, 0, training=1, windows="timing", total=80)
    assert record.training == 0 and record.timing.steps > 20
    assert any("another thing than in the run before" in note for note in record.notes)
