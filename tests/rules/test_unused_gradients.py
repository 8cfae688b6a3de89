"""What a backward does for weights that no optimizer trains, by where its gradients are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.harness.layout import Site
from advisor.harness.layout import UnusedGradients as Record
from advisor.rule import Advice, Finding
from rules.unused_gradients import UnusedGradients

DONE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def backward(made: Any, at: tuple[float, ...] = (12.0, 20.0, 28.0, 36.0), gradients: int = 4, needed: int = 1) -> None:
    """Steps of 40 ms in whose backward the gradients are done at these times; the first ones are needed."""
    made.operator("aten::addmm", 1.0, min(at) - 1.0)
    for each in at:
        made.operator(DONE, each, each + 0.1)
    made.record.gradients, made.record.gradients_needed = gradients, needed
    made.record.unused_gradients = [Record("Net", Site("/nowhere/train.py", 3), 3, 4000, ["head"])]


def found(made: Any, folder: Path) -> Finding | None:
    return next(iter(UnusedGradients().check(made.evidence(folder))), None)


def test_the_backward_after_the_last_gradient_that_is_used_goes(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    backward(made)
    finding = found(made, tmp_path)
    assert finding is not None and finding.site == Site("/nowhere/train.py", 5)  # of the optimizer
    assert finding.evidence["unused_backward_s"] == pytest.approx(0.024)
    assert finding.gain.low <= 40 / 16 <= finding.gain.high
    assert finding.parameters["trained"] == ("head",) and finding.parameters["made"] == ()
    made.record.unused_gradients[0].trained = []
    finding = found(made, tmp_path)
    assert finding is not None and finding.parameters["made"] == (Site("/nowhere/train.py", 3),)


def test_a_rate_of_zero_is_told_of_and_left_to_the_author(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    backward(made)
    made.record.unused_gradients[0].resting = True
    finding = found(made, tmp_path)
    assert finding is not None and "at a rate of zero" in finding.summary
    advice = UnusedGradients().fix(finding, Sources())
    assert isinstance(advice, Advice) and "train.py:5" in advice.text


def test_each_of_several_backwards_has_its_own_end(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    backward(made, gradients=2)
    finding = found(made, tmp_path)
    assert finding is not None and finding.evidence["unused_backward_s"] == pytest.approx(0.016)


@pytest.mark.parametrize(
    ("gradients", "needed"),
    [
        (4, 4),  # none is done after the last that is used
        (3, 1),  # other backwards than those whose order was seen
        (0, 0),  # nothing was seen
    ],
)
def test_what_cannot_be_told_is_not_reported(gradients: int, needed: int, scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    backward(made, gradients=gradients, needed=needed)
    assert found(made, tmp_path) is None


def test_a_short_rest_is_not_worth_a_change(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    backward(made, (12.0, 12.2, 12.4, 12.6))
    assert found(made, tmp_path) is None


def test_on_a_gpu_it_is_the_kernels_that_the_rest_launches(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0, gpu="NVIDIA A100-SXM4-40GB")
    backward(made, (4.0, 4.4, 4.8, 5.2))
    made.kernel("forward_kernel", 1.1, 16.0, 1.05)  # by the operator of the forward
    made.kernel("backward_kernel", 16.0, 39.0, 4.6)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 6.0, 39.0)
    finding = found(made, tmp_path)
    assert finding is not None and finding.gain.low <= 40 / 17 <= finding.gain.high
    made.record.gradients_needed = 3  # by then it is launched
    assert found(made, tmp_path) is None
