"""Numbers that no profiler writes: facts stay finite, shares stay shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Change, Evidence

_YEAR_US = 3e13  # the reader takes what is longer for damage
MANY = 400


@pytest.mark.parametrize("digits", [19, 20, 5000])
def test_step_with_a_number_of_many_digits(digits: int, builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.annotation("ProfilerStep#" + "9" * digits, 0, 1000)
    build.kernel(100, 900, launched=50)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.figures["steps"] == 1
    assert evidence.steps.number[0] > 0


def test_sums_of_absurd_durations_do_not_overflow(builder: Any, tmp_path: Path) -> None:
    # Together they are longer than 2**63 ns.
    build = builder()
    for i in range(MANY):
        build.kernel(10 + i, 10 + i + _YEAR_US, f"kernel_{i % 2}", launched=5 + i, stream=7 + i)
        build.copy(10 + i, 10 + i + _YEAR_US, "Memcpy HtoD (Pageable -> Device)", launched=5 + i)
        build.operator("aten::mm", 0, _YEAR_US, thread=200 + i)
        build.runtime("cudaStreamSynchronize", 20, 20 + _YEAR_US, thread=200 + i)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.figures["kernel_sum_ms"] == pytest.approx(MANY * _YEAR_US / 1e3)
    assert evidence.figures["h2d_ms"] == pytest.approx(MANY * _YEAR_US / 1e3)
    assert sum(row.share for row in evidence.kernels) == pytest.approx(1.0)
    assert all(0 <= row.share <= 1 for row in evidence.kernels)
    assert all(row.self_s >= 0 and row.device_s >= 0 for row in evidence.operators)
    assert all(row.total_s >= 0 and row.blocking_s >= 0 for row in evidence.copies.rows)
    assert all(row.total_s >= row.wait_s >= 0 for row in evidence.syncs)
    assert sum(evidence.shares.values()) == 1.0 and min(evidence.shares.values()) >= 0
    for finding in diagnose(evidence).document.findings:
        assert all(value >= 0 for value in finding.evidence.values() if isinstance(value, float))


def test_launch_calls_of_a_year(builder: Any, tmp_path: Path) -> None:
    build = builder()
    for i in range(3):
        build.kernel(100 + i, 101 + i, launched=i, stream=7 + i)
        build.events[-2]["dur"] = _YEAR_US
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert 0 <= evidence.what_if(Change(launch_scale=0.5)).likely <= evidence.step_s


@pytest.mark.parametrize(
    ("dims", "concrete"),
    [
        ([[8, 64, 32, 32], [64, 64, 3, 3]], {"a": 1}),
        ([[8, 64, 32, 32], [64, 64, 3, 3]], ["", "", "", 3, None, [1], "False", "", 1]),
        ([["x", 10**12], ["y", 10**12]], None),
        ([[[1, 2], 10**12], [[1, 2], 10**12]], None),
        ([[10**300, 10**300], [10**300, 10**300]], None),
        ([[1e308, 1e308], [1e308, 1e308]], None),
        ({"0": [2, 2]}, None),
        ([[-4, 4], [4, 4]], None),
    ],
)
def test_shapes_that_are_none(dims: Any, concrete: Any, builder: Any, tmp_path: Path) -> None:
    args = {"Input Dims": dims, "Input type": [["float"], 3, "float"], "Concrete Inputs": concrete}
    build = builder()
    build.step(1, 0, 1000)
    for name in ("aten::mm", "aten::convolution", "aten::convolution_backward", "aten::addmm"):
        build.operator(name, 10, 500, **args)
    build.kernel(100, 900, launched=50)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert 0 <= evidence.flops.per_step < float("inf")
    assert "mfu" not in evidence.figures


def test_more_work_than_the_device_can_do_is_no_share(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.operator("aten::mm", 10, 500, **{"Input Dims": [[10**6, 10**6], [10**6, 10**6]], "Input type": ["float"] * 2})
    build.kernel(100, 900, launched=50)
    figures = Evidence.from_trace(build.read(tmp_path)).figures
    assert figures["flops_per_step"] == 2e18
    assert "mfu" not in figures
