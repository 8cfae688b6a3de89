"""What a host that launches little is about: preparing its input, or capturing graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Change, Evidence


def _eager(build: Any, begin: float, kernels: int = 40) -> float:
    """Short kernels of an eager model, launched one by one every 100 µs; the time when they are done."""
    for i in range(kernels):
        at = begin + 100 * i
        build.operator("aten::linear", at, at + 30)
        build.kernel(at + 20, at + 30, launched=at + 10)
    return begin + 100 * kernels


def _prepared(build: Any, preparing_us: float) -> Any:
    """Two steps: a preprocessor in Python that launches nothing, then an eager model."""
    begin = 0.0
    for number in (1, 2):
        end = _eager(build, begin + preparing_us)
        build.step(number, begin, end)
        begin = end
    return build


def test_a_compiler_does_not_shorten_the_preprocessor(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_prepared(builder(), 40_000).read(tmp_path))
    estimate = evidence.step_model.estimate(Change(launch_scale=0.5))
    # 40 ms of 44 are no launching: at most 2 ms of the other 4 can go.
    assert estimate.before == pytest.approx(0.044)
    assert estimate.likely == pytest.approx(0.042, rel=0.01)
    assert not any(finding.rule == "compile" for finding in diagnose(evidence).document.findings)


def test_a_compiler_shortens_what_is_between_launches(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_prepared(builder(), 100).read(tmp_path))
    estimate = evidence.step_model.estimate(Change(launch_scale=0.5))
    assert estimate.likely < 0.6 * estimate.before
    [finding] = [each for each in diagnose(evidence).document.findings if each.rule == "compile"]
    assert 0.8 < finding.evidence["fusible_share"] <= 1.0


def _capturing(build: Any) -> Any:
    """A model whose kernels run once to warm up and are then captured: launches without work."""
    end = _eager(build, 0)
    build.runtime("cudaStreamBeginCapture", end, end + 5)
    for i in range(100):
        build.operator("aten::linear", end + 100 * i, end + 100 * i + 30)
        build.runtime("cudaLaunchKernel", end + 100 * i + 10, end + 100 * i + 15)
    build.runtime("cudaStreamEndCapture", end + 10_000, end + 10_020)
    build.kernel(end + 10_100, end + 10_200, launched=end + 10_050)
    return build


def test_capturing_graphs_is_said_and_no_step_to_mend(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_capturing(builder()).read(tmp_path))
    assert evidence.capture_share == pytest.approx(0.7, abs=0.02)
    assert any(note.startswith("Graphs are captured for 7") for note in evidence.notes)
    assert not diagnose(evidence).document.findings


def test_without_the_capture_the_same_trace_has_findings(builder: Any, tmp_path: Path) -> None:
    build = _capturing(builder())
    build.events = [each for each in build.events if "Capture" not in each["name"]]
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.capture_share == 0.0
    assert {each.rule for each in diagnose(evidence).document.findings} & {"compile", "batch-size"}


def test_a_capture_that_does_not_end_in_the_trace_is_none(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.runtime("hipStreamBeginCapture", 0, 5)
    build.kernel(20, 30, launched=10)
    assert Evidence.from_trace(build.read(tmp_path)).capture_share == 0.0


def _cold(build: Any, first_us: float) -> Any:
    """A model whose every fourth kernel is launched for the first time: the call loads it."""
    at = 0.0
    for i in range(60):
        call = first_us if i % 4 == 0 else 5.0
        build.operator("aten::linear", at, at + call + 20)
        build.runtime("cudaLaunchKernel", at + 10, at + 10 + call, correlation=1000 + i)
        build.kernel(at + 15 + call, at + 25 + call)
        build.events[-1]["args"]["correlation"] = 1000 + i
        at += call + 60
    return build


def test_a_cold_start_is_said_and_no_reason_for_a_larger_batch(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_cold(builder(), 3000).read(tmp_path))
    assert evidence.bound == "host"
    assert evidence.setup_share > 0.9
    assert any("Record the trace after some steps of warm-up" in note for note in evidence.notes)
    assert not diagnose(evidence).document.findings


def test_what_the_driver_takes_once_is_no_part_of_the_steps_to_come(builder: Any, tmp_path: Path) -> None:
    """A value read behind a kernel that is loaded: without it the host would not be earlier."""

    def gain(first_us: float) -> float:
        build = builder()
        build.operator("aten::linear", 0, first_us + 40)
        build.runtime("cudaLaunchKernel", 10, 10 + first_us, correlation=1)
        build.kernel(15 + first_us, 25 + first_us)
        build.events[-1]["args"]["correlation"] = 1
        build.operator("aten::item", first_us + 50, first_us + 80)
        build.runtime("cudaStreamSynchronize", first_us + 55, first_us + 75)
        for i in range(9):
            at = first_us + 100 + 50 * i
            build.operator("aten::linear", at, at + 40)
            build.kernel(at + 30, at + 40, launched=at + 20)
        evidence = Evidence.from_trace(build.read(tmp_path))
        return evidence.what_if(Change(remove_syncs=True)).speedup[1]

    warm = gain(5)
    assert warm < 1.1
    assert gain(700_000) == pytest.approx(warm, abs=0.02)


def test_a_long_launch_of_an_idle_device_is_the_host_s_time(builder: Any, tmp_path: Path) -> None:
    build = builder()
    for i in range(20):
        at = 500.0 * i
        call = 300.0 if i % 2 else 5.0
        build.operator("aten::linear", at, at + call + 20)
        build.runtime("cudaGraphLaunch", at + 10, at + 10 + call, correlation=1000 + i)
        build.kernel(at + 5 + call, at + 15 + call)
        build.events[-1]["args"]["correlation"] = 1000 + i
    evidence = Evidence.from_trace(build.read(tmp_path))
    script = evidence.step_model.script
    assert script is not None and int(script.length.max()) == 300_000


def test_a_warm_run_of_the_same_is_no_cold_start(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_cold(builder(), 5).read(tmp_path))
    assert evidence.setup_share == 0.0
    assert not any("warm-up" in note for note in evidence.notes)
    assert "batch-size" in {each.rule for each in diagnose(evidence).document.findings}


def test_a_launch_that_waits_for_room_in_the_queue_is_no_cold_start(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.kernel(10, 9000, launched=5)
    build.runtime("cudaLaunchKernel", 20, 8990)
    build.kernel(9000, 9100, launched=8992)
    assert Evidence.from_trace(build.read(tmp_path)).setup_share == 0.0
