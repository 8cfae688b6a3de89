"""Scripts without a module, a loader, an optimizer or a gradient: the rounds of a loop of theirs are the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import NO_STEP, AdvisorError
from advisor.harness.layout import Environment, Options, RunRecord
from advisor.harness.loop_rounds import loop_lines
from advisor.launch import Command, measure, next_try
from tests.conftest import PYTHON, QUICK

pytestmark = [pytest.mark.slow, pytest.mark.oldest]

# A sampler with a loop in each of its steps, and one before them that makes the data.
SAMPLER = """\
import torch

torch.set_num_threads(1)
torch.manual_seed(0)

rows = []
for _ in range(900):
    rows.append(torch.randn(60))
data = torch.stack(rows)


def energy(x):
    total = 0.0
    for part in data.split(50):
        total = total + (part @ x).square().mean().cos()
    return total


x, kept = torch.zeros(60), 0
for step in range(4000):  # <- steps
    proposed = x + 0.1 * torch.randn(60)
    for _ in range(8):
        proposed = proposed + 0.01 * torch.randn(60)
    if torch.rand(()) < (energy(x) - energy(proposed)).exp():
        x, kept = proposed, kept + 1
print(kept)
"""
# Everything in functions; few rounds of epochs around many of frames.
FILTER = """\
import sys
import torch


def smooth(stack, rounds):
    while rounds:
        stack, rounds = (stack + stack.roll(1, 1) + stack.roll(1, 2)) / 3, rounds - 1
    return stack


def main():
    torch.set_num_threads(1)
    stacks = list(torch.rand(800, 40, 64, 64))
    for epoch in range(2):
        for stack in stacks:  # <- steps
            print(epoch, smooth(stack[None], 6).mean().item())


if __name__ == "__main__":
    main()
"""


def marked(text: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if "# <- steps" in line)


def run(folder: Path, text: str, options: Options = QUICK) -> RunRecord:
    (folder / "script.py").write_text(text)
    command = Command(str(folder / "script.py"), python=PYTHON, cwd=str(folder))
    return measure(command, folder / "run", options, timeout=120).record


@pytest.mark.parametrize("text", [pytest.param(SAMPLER, id="sampler"), pytest.param(FILTER, id="filter")])
def test_the_outermost_loop_that_goes_round_is_the_steps(text: str, tmp_path: Path) -> None:
    record = run(tmp_path, text)
    assert record.step_kind == "loop" and record.complete
    assert f"steps are the rounds of the loop at script.py:{marked(text)}" in record.notes
    assert any("was run again to find the loop" in note for note in record.notes)
    assert record.traces and record.timing.step_s is not None and 1e-4 < record.timing.step_s < 0.5


def test_a_loop_is_what_the_steps_are_when_that_is_said(tmp_path: Path) -> None:
    """Also of a script that has optimizer steps: here each round has two."""
    text = """\
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4000):
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(512, 64)).square().mean().backward()
        optimizer.step()
"""
    record = run(tmp_path, text, Options(min_seconds=0.5, max_seconds=5.0, settle_max_seconds=5.0, step="loop"))
    assert record.step_kind == "loop" and "steps are the rounds of the loop at script.py:5" in record.notes
    assert record.seen["optimizer_steps"] >= 2 * record.steps


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import torch\nprint(torch.ones(3).sum())\n", id="no loop"),
        pytest.param(
            "import time, torch\nfor _ in range(40):\n    time.sleep(0.05)\nprint(torch.ones(3))\n",
            id="a loop that computes nothing",
        ),
    ],
)
def test_what_has_no_step_is_said_to_have_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="no step was found") as raised:
        run(tmp_path, text)
    assert raised.value.exit_status == NO_STEP


def over(**seen: int) -> RunRecord:
    return RunRecord(ended="finished", environment=Environment(torch="2.9"), seen=seen, wall_s=40.0)


def test_loops_are_looked_for_where_nothing_else_was_seen() -> None:
    assert next_try(over(), Options(step="loop")) is None
    assert next_try(over(), Options(), children=True) is None
    assert next_try(RunRecord(ended="finished"), Options()) is None  # without torch
    (_, options) = next_try(over(batches=1), Options()) or ("", Options())
    assert (options.step, options.loops_watched_s) == ("loop", 6.0)
    (_, options) = next_try(over(batches=9), Options()) or ("", Options())
    assert options.step == "loader"


def test_lines_of_loops(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("for a in b:\n    while c:\n        d = [e for e in f]\n")
    (tmp_path / "b.py").write_text("for a in\n")
    assert loop_lines(str(tmp_path / "a.py")) == {1, 2}
    assert not loop_lines(str(tmp_path / "b.py")) and not loop_lines(str(tmp_path / "c.py"))
