"""What is left of products in a narrower format, against what owners of such GPUs measured.

TFLOP/s of float32, and of the other format, of products of square matrices (zzc0721/torch-performance-test-data, the
issues 79, 112, 108, 140, 185, 126, 114, 78 and 124).
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.evidence.facts import KernelRow
from advisor.evidence.gpu.devices import peak_of
from advisor.evidence.gpu.products import left_of_products, reading_weights
from tests.rules.test_checks import SGEMM, busy_gpu

MEASURED = (
    ("NVIDIA H100 80GB HBM3", (9, 0), "tf32", {1024: (37.39, 119.6), 2048: (49.58, 334.99), 4096: (51.88, 402.15)}),
    ("NVIDIA H100 80GB HBM3", (9, 0), "bfloat16", {1024: (37.39, 176.6), 2048: (49.58, 676.59), 4096: (51.88, 788.72)}),
    ("NVIDIA A100-PCIE-40GB", (8, 0), "tf32", {2048: (9.69, 90.82), 4096: (15.52, 108.32), 8192: (17.56, 97.32)}),
    ("NVIDIA A100-PCIE-40GB", (8, 0), "bfloat16", {2048: (9.69, 138.46), 4096: (15.52, 234.14), 8192: (17.56, 215.26)}),
    ("Tesla V100-SXM2-16GB", (7, 0), "float16", {1024: (10.56, 57.3), 2048: (12.71, 78.23), 4096: (13.85, 95.73)}),
    ("NVIDIA A40", (8, 6), "tf32", {1024: (17.05, 38.65), 2048: (21.44, 43.8), 4096: (23.01, 54.88)}),
    ("NVIDIA A40", (8, 6), "bfloat16", {1024: (17.05, 82.35), 2048: (21.44, 95.47), 4096: (23.01, 115.16)}),
    ("NVIDIA A10G", (8, 6), "bfloat16", {1024: (17.75, 47.92), 2048: (21.73, 60.57), 4096: (23.37, 62.48)}),
    ("NVIDIA GeForce RTX 3080", (8, 6), "tf32", {2048: (21.07, 26.3), 4096: (20.86, 30.62), 8192: (20.97, 31.85)}),
    ("NVIDIA GeForce RTX 4090", (8, 9), "tf32", {2048: (53.84, 69.24), 4096: (53.02, 84.44), 8192: (53.41, 85.65)}),
    ("NVIDIA GeForce RTX 4090", (8, 9), "float16", {2048: (53.84, 159.38), 4096: (53.02, 168.38)}),
    ("NVIDIA GeForce RTX 5090", (12, 0), "bfloat16", {4096: (64.5, 182.19), 8192: (66.91, 234.66)}),
)


def on(name: str, capability: tuple[int, int] | None) -> Any:
    return SimpleNamespace(peak=peak_of(name), capability=capability)


def kernel(seconds: float, count: int = 10) -> KernelRow:
    return KernelRow("sgemm", count, seconds * count, seconds * count, 1.0, "aten::mm", "off", "gemm")


@pytest.mark.parametrize(("name", "capability", "then", "rates"), MEASURED)
def test_what_is_left_is_what_was_measured(
    name: str, capability: tuple[int, int], then: str, rates: dict[int, tuple[float, float]]
) -> None:
    for size, (before, after) in rates.items():
        seconds = 2 * size**3 / (before * 1e12)
        left = left_of_products(on(name, capability), kernel(seconds), "float32", then)
        assert left is not None
        assert abs(math.log(left / (before / after))) < math.log(1.4), f"{size}: {left:.3f} for {before / after:.3f}"


def test_a_short_kernel_gains_little() -> None:
    h100 = on("NVIDIA H100 80GB HBM3", (9, 0))
    assert left_of_products(h100, kernel(10e-6), "float32", "bfloat16") == pytest.approx(0.77, abs=0.01)
    assert left_of_products(h100, kernel(5e-6), "float32", "bfloat16") == 1.0


def test_what_is_not_known_is_not_said() -> None:
    assert left_of_products(on("NVIDIA H20", (9, 0)), kernel(1e-3), "float32", "tf32") is None
    assert left_of_products(on("Tesla V100-SXM2-16GB", (7, 0)), kernel(1e-3), "float32", "tf32") is None


def test_reading_the_weights_takes_its_time_in_any_format(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 1.0), step_ms=10.0)
    made.record.models[0].parameters = 200_000_000
    evidence = made.evidence(tmp_path)
    assert reading_weights(evidence, 1e-2, 2) == pytest.approx(3 * 200e6 * 2 / 1555e9 / 1e-2)
    assert reading_weights(evidence, 1e-4, 2) == 0.5
    assert left_of_products(evidence, evidence.kernels[0], "float32", "tf32", 0.5) == pytest.approx(0.5, abs=0.01)
