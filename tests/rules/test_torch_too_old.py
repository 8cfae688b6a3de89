"""A torch that has no code for the GPU is told by what it was compiled for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.rule import Finding
from advisor.rulebook import load_rules

BLACKWELL = "NVIDIA GeForce RTX 5090"
BUILT = ["sm_50", "sm_80", "sm_86", "sm_90", "compute_90"]


def found(scene: Any, folder: Path, capability: list[int], built: list[str], **device: Any) -> list[Finding]:
    (rule,) = [each for each in load_rules() if each.id == "torch-too-old"]
    made = scene(10.0, BLACKWELL)
    made.kernel("void at::native::vectorized_elementwise_kernel<4>", 0.1, 9.0, launched=0.01)
    made.record.device.capability, made.record.device.architectures = capability, built
    made.record.environment.torch, made.record.environment.torch_cuda = "2.6.0", "12.4"
    for name, value in device.items():
        setattr(made.record.device, name, value)
    return list(rule.check(made.evidence(folder)))


def test_a_gpu_newer_than_all_that_torch_was_compiled_for(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(scene, tmp_path, [12, 0], BUILT)
    assert "sm_120" in finding.summary and "CUDA 12.4" in finding.summary and "sm_90" in finding.summary
    assert finding.gain.likely == 1.0 and not finding.gain.worth_it


@pytest.mark.parametrize(
    ("capability", "built", "device"),
    [
        ([9, 0], BUILT, {}),
        ([8, 9], BUILT, {}),  # what was compiled for 8.6 runs on it
        ([12, 0], [*BUILT, "sm_120a"], {}),
        ([7, 0], ["sm_75", "sm_90"], {}),  # too new, if anything
        ([12, 0], [], {}),  # not known
        ([12, 0], ["gfx90a", "gfx942"], {}),
        ([9, 4], BUILT, {"hip": "6.4"}),
    ],
)
def test_code_that_runs_is_left_alone(
    capability: list[int], built: list[str], device: dict[str, Any], scene: Any, tmp_path: Path
) -> None:
    assert found(scene, tmp_path, capability, built, **device) == []


def test_a_bare_trace_does_not_say_what_recorded_it(scene: Any, tmp_path: Path) -> None:
    made = scene(10.0, BLACKWELL)
    made.record.device.capability, made.record.device.architectures = [12, 0], BUILT
    evidence = Evidence.from_trace(made.evidence(tmp_path).trace)
    assert not [each for rule in load_rules() if rule.id == "torch-too-old" for each in rule.check(evidence)]
