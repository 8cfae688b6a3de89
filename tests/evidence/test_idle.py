"""What the host did while the device had nothing to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.evidence import Evidence
from advisor.evidence.facts import DEVICE_CLASSES


def shares(build: Any, folder: Path) -> dict[str, float]:
    return Evidence.from_trace(build.read(folder)).breakdown.shares


def test_waiting_for_the_loader(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.load(0, 600)
    build.operator("aten::mm", 600, 620)
    build.kernel(610, 1000, launched=605)
    found = shares(build, tmp_path)
    assert found["idle_loader"] == pytest.approx(0.6)
    assert found["kernel"] == pytest.approx(0.39)


def test_synchronization_takes_the_lead_from_the_host(builder: Any, tmp_path: Path) -> None:
    # The host waits 300 µs for a kernel, and only then prepares the next one: that gap is the synchronization's.
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 400, launched=5)
    build.operator("aten::item", 90, 405)
    build.runtime("cudaStreamSynchronize", 100, 405)
    build.operator("aten::mm", 590, 605)
    build.kernel(600, 1000, launched=595)
    found = shares(build, tmp_path)
    assert found["idle_sync"] == pytest.approx(0.2, abs=0.01)
    assert found["idle_python"] < 0.01


def test_python_between_kernels(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 100, launched=5)
    build.operator("aten::mm", 895, 905)
    build.kernel(905, 1000, launched=900)
    assert shares(build, tmp_path)["idle_python"] == pytest.approx(0.795, abs=0.02)


def test_cpu_operators_between_kernels(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 100, launched=5)
    build.operator("aten::sort", 150, 850)
    build.operator("aten::mm", 895, 905)
    build.kernel(905, 1000, launched=900)
    assert shares(build, tmp_path)["idle_operators"] == pytest.approx(0.7, abs=0.01)


def test_launch_bound(builder: Any, tmp_path: Path) -> None:
    # A kernel of 3 µs every 40 µs, each starting right after its launch, with an operator and some Python in between.
    build = builder()
    build.step(1, 0, 1000)
    for start in range(0, 1000, 40):
        build.operator("aten::add", start, start + 20)
        build.kernel(start + 16, start + 19, launched=start + 10)
    found = shares(build, tmp_path)
    assert found["idle_launch"] > 0.85
    assert found["kernel"] == pytest.approx(0.075)


def test_gap_between_queued_kernels_is_the_devices_own(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(20, 480, launched=5)
    build.kernel(490, 1000, launched=11)
    found = shares(build, tmp_path)
    assert found["idle_queued"] == pytest.approx(0.01)
    assert found["idle_python"] == pytest.approx(0.005)  # before the first launch


def test_long_rest_with_work_queued_is_unknown(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(20, 300, launched=5)
    build.kernel(900, 1000, launched=11)
    assert shares(build, tmp_path)["idle_unknown"] == pytest.approx(0.6)


def test_kernels_without_any_host_event_leave_the_cause_unknown(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.kernel(0, 100)
    build.kernel(400, 500)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.steps.pseudo
    assert evidence.breakdown.shares["idle_unknown"] == pytest.approx(0.6)


def test_backward_thread_counts_as_the_host(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 100, launched=5)
    for start in range(100, 940, 60):
        build.operator("autograd::engine::evaluate_function: AddBackward0", start, start + 55, thread=101)
        build.kernel(start + 46, start + 50, launched=start + 40, thread=101)
    found = shares(build, tmp_path)
    assert found["idle_launch"] > 0.7
    assert found["idle_python"] < 0.15


def test_pin_memory_thread_is_not_the_host(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 100, launched=5)
    build.operator("aten::pin_memory", 100, 890, thread=555)
    build.operator("aten::mm", 895, 905)
    build.kernel(905, 1000, launched=900)
    found = shares(build, tmp_path)
    assert found["idle_operators"] < 0.01
    assert found["idle_python"] > 0.7


def test_gap_over_a_step_boundary_belongs_to_both_steps(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 500)
    build.step(2, 500, 1000)
    build.kernel(0, 400, launched=-10)
    build.load(410, 590)
    build.kernel(600, 1000, launched=595)
    gaps = Evidence.from_trace(build.read(tmp_path)).idle_gaps
    assert (gaps.end - gaps.start).tolist() == [100_000, 100_000]
    assert gaps.parts[:, 0].tolist() == [90_000, 90_000]
    assert gaps.step.tolist() == [0, 1]
    assert gaps.cause_name(0) == "idle_loader"


def test_hidden_copies_and_collectives_are_not_exposed(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(0, 1000, launched=-10)
    build.kernel(100, 300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", launched=0, stream=20)
    build.copy(500, 700, launched=2, stream=21)
    found = shares(build, tmp_path)
    assert found["kernel"] == 1.0
    assert found["exposed_communication"] == 0.0 and found["exposed_copy"] == 0.0


TIMES = st.integers(0, 2000)
SPANS = st.lists(st.tuples(TIMES, st.integers(0, 400)), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.integers(1, 900), max_size=4),
    kernels=st.lists(st.tuples(TIMES, st.integers(0, 300), st.one_of(st.none(), st.integers(-300, 50))), max_size=15),
    copies=SPANS,
    loads=SPANS,
    operators=SPANS,
    syncs=SPANS,
)
def test_any_trace_adds_up(
    builder: Any,
    tmp_path: Path,
    steps: list[int],
    kernels: list[tuple[int, int, int | None]],
    copies: list[tuple[int, int]],
    loads: list[tuple[int, int]],
    operators: list[tuple[int, int]],
    syncs: list[tuple[int, int]],
) -> None:
    build = builder()
    at = 100
    for number, length in enumerate(steps):
        build.step(number, at, at + length)
        at += length + (number % 2) * 10
    for i, (start, length, lead) in enumerate(kernels):
        name = "ncclDevKernel_AllReduce" if i % 5 == 4 else "kernel"
        build.kernel(start, start + length, name, launched=None if lead is None else start + lead, stream=7 + i % 2)
    for start, length in copies:
        build.copy(start, start + length, launched=start - 20)
    for start, length in loads:
        build.load(start, start + length)
    for start, length in operators:
        build.operator("aten::mm", start, start + length)
    for start, length in syncs:
        build.runtime("cudaDeviceSynchronize", start, start + length)
    build.operator("aten::empty", 0, 1)
    evidence = Evidence.from_trace(build.read(tmp_path))
    breakdown = evidence.breakdown
    assert (breakdown.ns >= 0).all()
    assert (breakdown.ns.sum(axis=1) == breakdown.step_ns).all()
    if breakdown.step_ns.sum():
        assert sum(breakdown.shares.values()) == 1.0
    gaps = evidence.idle_gaps
    assert (gaps.parts >= 0).all()
    assert (gaps.parts.sum(axis=1) == gaps.end - gaps.start).all()
    if breakdown.on_device:
        # Brute force, microsecond by microsecond: the device is idle exactly where nothing runs inside a step.
        busy = np.zeros(4000, bool)
        for start, length in [(k[0], k[1]) for k in kernels] + copies:
            busy[start : start + length] = True
        inside = np.zeros(4000, bool)
        for start, end in zip(evidence.device_steps.start, evidence.device_steps.end, strict=True):
            inside[start // 1000 : end // 1000] = True
        assert breakdown.ns[:, DEVICE_CLASSES.index("idle_loader") :].sum() // 1000 == int((inside & ~busy).sum())
    assert evidence.verdict
    assert evidence.figures["kernels"] == len(kernels)
