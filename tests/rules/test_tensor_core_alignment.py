"""Products of odd sizes: by the kernels' names and shapes, measured against aligned ones of the same steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from advisor.rules.tensor_core_alignment import TensorCoreAlignment

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.evidence.gpu.alignment import misaligned_products
from advisor.evidence.gpu.devices import peak_of
from advisor.rule import Finding
from advisor.trace import find_traces, read_trace

A100 = "NVIDIA A100-SXM4-40GB"
BF16 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align{}>(cutlass::Params)"
TF32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align{}>(cutlass::Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"


def products(scene: Any, name: str, *parts: tuple[int, int, float]) -> Any:
    """A busy step of 20 ms: products of [8192, 768] by [768, size] as (align, size, ms), then elementwise work."""
    made = scene(20.0, A100)
    start = 0.2
    for number, (align, size, length) in enumerate(parts):
        at = 0.01 + 0.01 * number
        shapes = [[size], [8192, 768], [768, size], [], []]
        made.each("cpu_op", "aten::addmm", at, at + 0.009, **{"Input Dims": shapes})
        made.kernel(name.format(align), start, start + length, launched=at + 0.001)
        start += length
    made.operator("aten::mul", 0.15, 0.17)
    made.kernel(ELEMENTWISE, start, 19.9, launched=0.16)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.18, 19.95)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(TensorCoreAlignment().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


# 39 GFLOP in 0.2 ms and 632 GFLOP in 6.4 ms: 193 and 99 TFLOP/s.
EVEN, ODD = (8, 3072, 0.2), (1, 50257, 6.4)


def test_a_vocabulary_of_odd_size_is_found(scene: Any, tmp_path: Path) -> None:
    made = products(scene, BF16, EVEN, EVEN, ODD)
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nhead = torch.nn.Linear(768, 50257)\n")
    made.record.script = str(path)
    finding = found(made, tmp_path)
    assert finding is not None and finding.evidence["sizes"] == "50257"
    assert finding.gain.likely == pytest.approx(20 / (20 - 6.4 + 3.27), rel=0.03)
    fix = TensorCoreAlignment().fix(finding, Sources())
    assert "50257 (train.py:3) → 50304" in fix.text


@pytest.mark.parametrize(
    "aligned",
    [
        pytest.param("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNT", id="hopper"),
        pytest.param("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", id="ampere"),
    ],
)
def test_the_yardstick_may_be_kernels_whose_names_tell_no_alignment(aligned: str, scene: Any, tmp_path: Path) -> None:
    made = products(scene, aligned, EVEN, EVEN)
    at, (_, size, length) = 0.05, ODD
    shapes = [[size], [8192, 768], [768, size], [], []]
    made.each("cpu_op", "aten::addmm", at, at + 0.009, **{"Input Dims": shapes})
    made.kernel(BF16.format(1), 12.0, 12.0 + length, launched=at + 0.001)
    finding = found(made, tmp_path)
    assert finding is not None and finding.evidence["sizes"] == "50257"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param(BF16, (EVEN, (8, 50304, 6.4)), id="aligned"),
        pytest.param(BF16, (EVEN, (8, 50257, 6.4)), id="odd-and-fast-all-the-same"),
        pytest.param(BF16, (EVEN, (2, 50304, 6.4)), id="slow-for-another-reason"),
        pytest.param(BF16, (EVEN, (1, 50257, 3.3)), id="as-fast-as-the-others"),
        pytest.param(BF16, (ODD,), id="nothing-to-compare-with"),
        pytest.param(BF16, (EVEN, (1, 1001, 0.1)), id="small"),
        pytest.param(TF32, ((4, 3072, 0.4), (4, 50260, 13.0)), id="tf32-needs-four"),
    ],
)
def test_left_alone(name: str, parts: tuple[tuple[int, int, float], ...], scene: Any, tmp_path: Path) -> None:
    assert found(products(scene, name, *parts), tmp_path) is None


def test_tf32_counts_in_fours(scene: Any, tmp_path: Path) -> None:
    finding = found(products(scene, TF32, (4, 3072, 0.4), (1, 50257, 13.0)), tmp_path)
    assert finding is not None and finding.evidence["multiple"] == 4


def test_a_gpu_that_waits_for_the_script_gains_nothing(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    for number, (align, size) in enumerate([(8, 3072), (1, 50257)] * 5):
        at = 2.0 * number
        shapes = json.loads(f"[[{size}], [8192, 768], [768, {size}], [], []]")
        made.each("cpu_op", "aten::addmm", at, at + 1.9, **{"Input Dims": shapes})
        made.kernel(BF16.format(align), at + 1.0, at + (1.2 if align == 8 else 1.9), launched=at + 0.99)
    made.record.timing.step_s = 0.020
    finding = found(made, tmp_path)
    assert finding is None


def test_a_real_trace_agrees(shared_traces: Path) -> None:
    """Of a job on A100s: sizes of embeddings and vocabularies, and nothing that would be faster than was ever seen."""
    trace = read_trace(find_traces([shared_traces / "two-ranks"])[0])
    found = misaligned_products(trace, peak_of(A100))
    assert {size for size, _ in found.sizes} >= {38313, 606}
    assert all(0.5 <= factor < 1 for factor in found.scale.values())
    assert not list(TensorCoreAlignment().check(Evidence.from_trace(trace)))  # it does not say which GPU it is of


def test_hopper_loses_more_by_odd_sizes(scene: Any, tmp_path: Path) -> None:
    """Aligned products run at 595 TFLOP/s there, those of Turing's kernels at 99."""
    made = products(scene, BF16, (8, 3072, 0.065), (8, 3072, 0.065), ODD)
    made.record.device.name, made.record.device.capability = "NVIDIA H200", [9, 0]
    finding = found(made, tmp_path)
    assert finding is not None
    assert finding.gain.likely == pytest.approx(20 / (20 - 6.4 + 1.06), rel=0.03)
