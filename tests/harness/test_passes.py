"""Forwards of one and the same tensor: passes of Monte Carlo dropout are one step, a benchmark's calls are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.harness.passes import Passes
from advisor.harness.steps import StepFinder
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK


def model(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate), nn.Linear(4, 2))


def told(net: nn.Module, batches: int, passes: int, given: torch.Tensor | None = None) -> list[bool]:
    """What is told of each pass, over a tensor of each batch's own, or over one and the same."""
    seen = Passes(torch)
    tensors = [torch.randn(2, 4) if given is None else given for _ in range(batches)]
    with torch.no_grad():
        return [seen.another(net, [each]) for each in tensors for _ in range(passes)]


def test_another_pass_draws_other_numbers_for_the_same_tensor() -> None:
    # Once two batches had several passes it is known what these are.
    assert told(model(), batches=4, passes=3) == [False] * 6 + [False, True, True] * 2


def test_a_benchmark_calls_with_one_tensor() -> None:
    assert not any(told(model(), batches=1, passes=400))
    assert sum(told(model(), batches=4, passes=400)) == 2 * 255  # nor are hundreds of passes over one batch


def test_a_tensor_that_was_written_to_is_another() -> None:
    net, passes, given = model(), Passes(torch), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            given.mul_(2.0)
            first = passes.another(net, [given])
            passes.another(net, [given])
            assert not first
        assert passes.another(net, [given])


def test_of_inference_mode_a_tensor_is_known_by_its_numbers() -> None:
    net, passes = model(), Passes(torch)
    with torch.inference_mode():
        given = torch.randn(2, 4)
        seen = []
        for number in range(4):
            given.copy_(torch.full((2, 4), float(number)))
            seen += [passes.another(net, [given]) for _ in range(2)]
    assert seen == [False] * 5 + [True, False, True]


def test_a_pass_with_gradients_is_trained_by() -> None:
    net, passes = model(), Passes(torch)
    tensors = [torch.randn(2, 4) for _ in range(4)]
    assert not any(passes.another(net, [each]) for each in tensors for _ in range(3))


@pytest.mark.parametrize("net", [model().eval(), model(rate=0.0), nn.Linear(4, 2)], ids=["eval", "none", "without"])
def test_where_nothing_is_drawn_each_call_is_a_step(net: nn.Module) -> None:
    assert not any(told(net, batches=4, passes=3))


def test_another_model_begins_anew() -> None:
    passes, given = Passes(torch), torch.randn(2, 4)
    with torch.no_grad():
        assert not any(passes.another(model(), [given]) for _ in range(4))
        assert not any(passes.another(model(), []) for _ in range(2))


def test_another_pass_ends_no_step() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    found = [finder.before_forward("model", False, another=number % 4 > 0) for number in range(40)]
    assert [number for number, boundary in enumerate(found) if boundary] == [*range(0, 40, 4)]


def test_what_a_step_is_is_measured_anew_once_passes_are_known() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    restarted = []
    for number in range(24):
        finder.before_forward("model", False, another=number >= 8 and number % 4 > 0)
        restarted.append(finder.restarted)
    assert [number for number, each in enumerate(restarted) if each] == [12]


DRAWN = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 8)).{mode}()
with torch.no_grad():
    for _ in range(20000):
        batch = torch.randn(16, 64)
        torch.stack([model(batch) for _ in range(5)]).mean(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "forwards"), [("train", 5), ("eval", 1)])
def test_passes_of_a_real_script_are_one_step(mode: str, forwards: int, tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text(DRAWN.format(mode=mode))
    record = measure(
        Command(str(tmp_path / "draw.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK
    ).record
    (call,) = [each for each in record.call_sites if each.kind == "Module.call"]
    assert record.step_kind == "forward" and call.calls_per_step == pytest.approx(forwards, rel=0.3)
