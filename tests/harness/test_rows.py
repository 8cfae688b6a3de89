"""Samples per step where no loader makes the batches: the rows that the model gets."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

SCRIPT = """
import sys
import torch

steps, rows = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    count = rows if rows else 3 + step % 2
    loss = model(torch.randn(count, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("steps", "rows", "samples"),
    [
        pytest.param(100_000, 12, 12.0, id="a whole window"),
        pytest.param(150, 12, 12.0, id="over before the window is full", marks=pytest.mark.sessions),
        pytest.param(150, 0, None, id="rows that vary", marks=pytest.mark.sessions),
    ],
)
def test_rows_of_the_one_model_are_the_samples(steps: int, rows: int, samples: float | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).lstrip("\n"))
    command = Command(script=str(script), argv=(str(steps), str(rows)), python=PYTHON, cwd=str(tmp_path))
    run = measure(command, tmp_path / "run", QUICK, timeout=120)
    assert run.record.timing.samples_per_step == samples


PARTS = """
import itertools

import torch
from torch import nn

torch.set_num_threads(1)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.shoppers = nn.Linear(8, 16), nn.Linear(8, 16)


towers = {towers}
for number in itertools.count():  # parts are looked for when no model was called for seconds: many, on a fast machine
    with torch.inference_mode():
        best = (towers.shoppers(torch.randn({asked}, 8)) @ towers.items(torch.randn({items}, 8)).T).argmax(1)
"""


WHOLES = "type('Two', (), {'items': nn.Linear(8, 16).eval(), 'shoppers': nn.Linear(8, 16).eval()})"


EVERY_FEW = "32 if number % 9 else 5"


@pytest.mark.sessions
@pytest.mark.parametrize(
    ("towers", "items", "asked", "samples"),
    [
        pytest.param("Towers().eval()", 900, "32", None, id="parts with two numbers of rows"),
        pytest.param("Towers().eval()", 32, "32", 32.0, id="parts with as many", marks=pytest.mark.sessions),
        pytest.param(
            "Towers().eval()",
            "rows",
            f"(rows := {EVERY_FEW})",
            32.0,
            id="a last batch that is smaller",
            marks=pytest.mark.sessions,
        ),
        pytest.param(WHOLES, 900, "32", None, id="models with two numbers of rows", marks=pytest.mark.sessions),
    ],
)
def test_modules_that_are_given_different_numbers_of_rows_have_no_samples(
    towers: str, items: int | str, asked: str, samples: float | None, tmp_path: Path
) -> None:
    script = tmp_path / "serve.py"
    script.write_text(PARTS.format(towers=towers, items=items, asked=asked).lstrip("\n"))
    run = measure(Command(script=str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    assert run.record.timing.samples_per_step == samples
