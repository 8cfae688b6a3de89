"""Where a script is while a step takes several times as long as the others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from advisor.harness.pauses import Pauses
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK


def stands_still(seconds: float) -> None:
    time.sleep(seconds)


def watched(seconds: float, causes: set[str], times: int = 2, usual_s: float = 0.005) -> tuple[Pauses, float]:
    """What has seen so many long steps among short ones, and how long these were in all."""
    pauses, long = Pauses(), 0.0
    pauses.begin(usual_s)
    for _ in range(times):
        for _ in range(3):
            pauses.step_ended(time.perf_counter(), 0.005, ())
        began = time.perf_counter()
        stands_still(seconds)
        now = time.perf_counter()
        pauses.step_ended(now, now - began, causes)
        long += now - began
    return pauses, long


def test_a_long_step_is_put_down_to_its_lines() -> None:
    pauses, long = watched(0.3, {"epoch start"})
    found = pauses.end()
    assert sum(each.seconds for each in found) == pytest.approx(long - 2 * 0.005)
    assert {each.cause for each in found} == {"epoch start"} and not any(each.loading for each in found)
    longest = found[0]
    assert [site.function for site in longest.sites[:2]] == ["stands_still", "watched"] and longest.steps == [4, 8]


def test_of_several_causes_the_weightiest_names_it() -> None:
    assert {each.cause for each in watched(0.2, {"epoch start", "evaluation"})[0].end()} == {"evaluation"}
    assert {each.cause for each in watched(0.2, set())[0].end()} == {""}


def test_steps_of_the_usual_length_are_not_looked_at() -> None:
    assert watched(0.1, set(), usual_s=0.1)[0].end() == []


def test_after_the_end_nobody_looks() -> None:
    pauses, _ = watched(0.2, set())
    pauses.end()
    before = len(pauses._samples)
    time.sleep(0.2)
    assert len(pauses._samples) == before


SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

def features():
    time.sleep(0.25)
    return TensorDataset(torch.randn(64, 8))

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(400):
    for (x,) in DataLoader(features(), 8):
        time.sleep(0.01)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.oldest
def test_what_a_real_script_does_between_its_epochs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    timing = run.record.timing
    assert timing.aside_counts["epoch start"] >= 2
    longest = timing.pauses[0]
    assert longest.cause == "epoch start" and [(site.line, site.function) for site in longest.sites] == [
        (7, "features"),
        (13, "<module>"),
    ]
    taken = sum(each.seconds for each in timing.pauses if each.cause == "epoch start")
    assert taken == pytest.approx(timing.aside["epoch start"], rel=0.2)
