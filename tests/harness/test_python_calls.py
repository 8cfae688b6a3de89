"""Long steps are recorded with stacks where little Python runs in them, and without where a lot does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.evidence import Evidence
from advisor.evidence.stacks import Stacks
from advisor.harness.python_calls import PythonCalls
from advisor.harness.windows import LONGEST_WITH_STACKS
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import time
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def score(row):
    return len(row)


def work():
{body}


for step in range(40):
    work()
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FEW = """\
    time.sleep(0.6)
    return score("abc")
"""
MANY = """\
    until = time.perf_counter() + 0.6
    while time.perf_counter() < until:
        score("abc")
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("body", "stacks"), [(FEW, True), (MANY, False)], ids=["few", "many"])
def test_a_long_step_has_stacks_where_it_makes_few_calls(body: str, stacks: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body.rstrip("\n")))
    run = measure(Command(str(script), python=PYTHON), tmp_path / "run", QUICK)
    assert run.record.timing.step_s is not None and run.record.timing.step_s > LONGEST_WITH_STACKS
    evidence = Evidence.from_run(run)
    assert evidence.detail is not None
    found = Stacks.of(evidence.detail, int(np.bincount(evidence.detail.operators.lane).argmax()))
    assert (len(found) > 0) == stacks


def test_calls_are_counted_until_they_are_too_many() -> None:
    calls = PythonCalls(100)
    assert not calls.few  # nothing was counted
    calls.begin()
    for each in range(20):
        abs(each)
    calls.end()
    assert calls.few and sys.getprofile() is None
    calls.begin()
    for each in range(200):
        abs(each)
    assert sys.getprofile() is None  # no longer than it must
    calls.end()
    assert not calls.few


def test_a_profile_function_of_the_script_stays() -> None:
    calls = PythonCalls(100)

    def own(*_: Any) -> None:
        pass

    sys.setprofile(own)
    try:
        calls.begin()
        calls.end()
        assert sys.getprofile() is own and not calls.few
    finally:
        sys.setprofile(None)
    calls.begin()
    sys.setprofile(own)
    try:
        calls.end()
        assert sys.getprofile() is own and not calls.few
    finally:
        sys.setprofile(None)
