"""Plans that cuDNN builds for attention: told of where steps go on building them, not where one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.cudnn_attention_plans import CudnnAttentionPlans

from advisor.edit import Sources
from advisor.rule import Advice
from tests.rules.test_checks import A100, ELEMENTWISE, found

FORWARD, BACKWARD = "aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward"


def attending(scene: Any, steps: tuple[int, ...] = (0, 1, 2), plan_ms: float = 50.0) -> Any:
    """Steps of 150 ms; in these, cuDNN takes so long to be called forward and backward, and the GPU waits."""
    made = scene(150.0, A100)
    for number in range(3):
        long = plan_ms if number in steps else 0.2
        made._add("cpu_op", FORWARD, number, 10.0, 10.0 + long)
        made._add("cpu_op", BACKWARD, number, 80.0, 80.0 + long)
        for start in (11.0 + long, 81.0 + long):
            made._device("kernel", ELEMENTWISE, number, start, start + 5.0, start - 0.02, start - 0.01,
                         "cudaLaunchKernel", grid=[100, 1, 1], block=[256, 1, 1])  # fmt: skip
    return made


def test_plans_in_every_step_are_told_of(scene: Any, tmp_path: Path) -> None:
    finding = found(attending(scene), tmp_path, "cudnn-attention-plans")
    assert finding is not None
    assert finding.evidence["plans_per_step"] == 2 and finding.evidence["plans_s"] == pytest.approx(0.1)
    assert finding.gain.low < 2 < finding.gain.likely <= 3.1
    assert "2.0 plans for attention a step" in finding.summary


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"steps": (2,)}, id="once"),
        pytest.param({"plan_ms": 4.0}, id="a-call-that-was-interrupted"),
        pytest.param({"steps": ()}, id="plans-that-are-there"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(attending(scene, **facts), tmp_path, "cudnn-attention-plans") is None


def test_a_call_that_waits_for_memory_builds_no_plan(scene: Any, tmp_path: Path) -> None:
    made = attending(scene)
    for start in (10.5, 80.5):
        made.each("cuda_runtime", "cudaMalloc", start, start + 45.0)
    assert found(made, tmp_path, "cudnn-attention-plans") is None


def test_who_chooses_the_kernels_is_told_and_not_edited(scene: Any, tmp_path: Path) -> None:
    finding = found(attending(scene), tmp_path, "cudnn-attention-plans")
    assert finding is not None
    script = "import torch\nwith torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):\n    train()\n"
    fix = CudnnAttentionPlans().fix(finding, Sources({"/nowhere/train.py": script}))
    assert isinstance(fix, Advice) and "chooses the kernels" in fix.why
