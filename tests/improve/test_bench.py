"""Versions are compared in the same of a script's trainings, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.improve.bench import SEED, Bench, TrialError
from advisor.improve.state import State
from advisor.launch import Command
from tests.conftest import PYTHON, QUICK, SCRIPTS


def state(folder: Path, first: int, second: int) -> State:
    argv = ("--first", str(first), "--second", str(second))
    return State(Command(str(SCRIPTS / "two_trainings.py"), argv, python=PYTHON, cwd=str(folder)))


@pytest.mark.slow
@pytest.mark.sessions
def test_versions_are_measured_in_the_same_training(tmp_path: Path) -> None:
    bench = Bench(replace(QUICK, seed=SEED, min_seconds=2.0), timeout=120.0)
    # The first training is over before its timing window is full, which the second one fills: its steps take 4 ms here,
    # and 17 ms were seen on a machine that did other things beside.
    baseline = bench.baseline(state(tmp_path, 40, 1500), tmp_path / "baseline")
    assert baseline.record.training == 1
    assert bench.again(baseline, tmp_path / "again").record.training == 1
    # This version's first training would do by itself.
    whole = bench.whole(state(tmp_path, 1500, 1500), tmp_path / "whole", baseline)
    assert whole.record.training == 1 and max(whole.record.losses) < 50
    # And this one has no other.
    with pytest.raises(TrialError):
        bench.quick(state(tmp_path, 1500, 0), tmp_path / "quick", baseline)
