"""By how much TF32 speeds products up depends on the GPU; where it is switched off from outside, by nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rules.test_checks import ELEMENTWISE, SGEMM, busy_gpu, found


def multiplying(scene: Any, name: str, capability: list[int]) -> Any:
    """Steps of float32 products, nearly all of them, on that device."""
    made = busy_gpu(scene, (SGEMM, 0.95), (ELEMENTWISE, 0.05))
    made.gpu = made.record.device.name = name
    made.record.device.capability = capability
    return made


@pytest.mark.parametrize(
    ("name", "capability", "left"),
    [
        pytest.param("NVIDIA A100-SXM4-40GB", [8, 0], 1.1 * 19.5 / 156, id="in-the-table"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 1g.5gb", [8, 0], 0.35, id="a-part-of-a-card"),
        pytest.param("NVIDIA H20", [9, 0], 0.35, id="of-a-data-centre"),
        pytest.param("NVIDIA GeForce RTX 4090", [8, 9], 0.75, id="geforce-in-the-table"),
        pytest.param("NVIDIA GeForce RTX 3050", [8, 6], 0.75, id="geforce-30"),
        pytest.param("NVIDIA GeForce RTX 4060 Ti", [8, 9], 0.75, id="geforce-40"),
        pytest.param("NVIDIA GeForce RTX 3080 Laptop GPU", [8, 6], 0.75, id="geforce-of-a-laptop"),
        pytest.param("NVIDIA GeForce RTX 5070", [12, 0], 0.75, id="geforce-50"),
    ],
)
def test_geforce_multiplies_no_faster_in_tf32_than_its_peak_in_float32(
    name: str, capability: list[int], left: float, scene: Any, tmp_path: Path
) -> None:
    finding = found(multiplying(scene, name, capability), tmp_path, "tf32-matmul")
    assert finding is not None
    assert finding.gain.likely == pytest.approx(1 / (0.05 + 0.95 * left), rel=0.03)


@pytest.mark.parametrize(("override", "silent"), [({"NVIDIA_TF32_OVERRIDE": "0"}, True), ({}, False)])
def test_a_variable_that_forbids_it_cannot_be_overruled(
    override: dict[str, str], silent: bool, scene: Any, tmp_path: Path
) -> None:
    made = multiplying(scene, "NVIDIA A100-SXM4-40GB", [8, 0])
    made.record.environment.variables = override
    assert (found(made, tmp_path, "tf32-matmul") is None) is silent


def test_convolutions_that_are_told_not_to_are_told_of(scene: Any, tmp_path: Path) -> None:
    name = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_simt"
    made = busy_gpu(scene, (name, 0.9), (ELEMENTWISE, 0.1))
    made.record.environment.matmul_precision = "high"
    assert found(made, tmp_path, "tf32-matmul") is None
    made.record.environment.cudnn_tf32 = False
    finding = found(made, tmp_path, "tf32-matmul")
    assert finding is not None and finding.parameters["kinds"] == ("conv",)
    assert "float32 convolutions off the Tensor Cores" in finding.summary
