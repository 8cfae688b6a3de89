"""What the profiler costs the host, and what that does to predictions for a bare trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Change, Evidence
from advisor.trace import read_trace


def viewing(builder: Any, view_us: float) -> Any:
    """One step of 100 views, the kernel of each launched behind it, and the device as busy as that lets it be."""
    build = builder()
    build.step(1, 0, 10_000)
    for index in range(100):
        start = 100 * index
        build.operator("aten::view", start, start + view_us)
        build.operator("aten::mul", start + view_us, start + view_us + 10)
        build.kernel(start + view_us + 8, start + view_us + 48, launched=start + view_us)
    return build


def test_slow_operators_that_compute_nothing_are_the_profilers(builder: Any, tmp_path: Path) -> None:
    slow = Evidence.from_trace(viewing(builder, 21.0).read(tmp_path))
    assert slow.profiler_overhead_s == pytest.approx(200 * 20.45e-6, rel=0.01)  # each of the 200 operators pays it
    quick = Evidence.from_trace(viewing(builder, 0.5).read(tmp_path))
    assert quick.profiler_overhead_s == pytest.approx(200 * 0.45e-6, rel=0.01)


def test_predictions_reach_from_the_traced_host_to_an_undisturbed_one(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(viewing(builder, 50.0).read(tmp_path))
    quicker = Change(kernel_scale={row.name: 0.25 for row in evidence.kernels})
    traced = evidence.step_model.estimate(quicker)
    undisturbed = evidence.undisturbed_model
    assert undisturbed is not None and undisturbed.step_s < 0.6 * evidence.step_model.step_s
    assert traced.speedup[1] < 1.02  # the host as traced hides what the kernels save
    answer = evidence.what_if(quicker)
    assert traced.speedup[1] <= answer.speedup[1] <= undisturbed.estimate(quicker).speedup[1]
    assert answer.before == evidence.step_s
    assert answer.high / answer.low <= 2.0 + 1e-9


def test_the_note_says_how_much(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "a100-ddp-training.json.gz"))
    (note,) = [note for note in evidence.notes if "profiler" in note]
    assert note.startswith("About 57%")


def test_work_once_data_is_there(builder: Any, tmp_path: Path) -> None:
    build = builder()
    for number in range(3):  # a loader in line, then kernels that the host waits for
        start = 1000 * number
        build.step(number, start, start + 1000)
        build.load(start, start + 600)
        build.operator("aten::mm", start + 600, start + 620)
        build.kernel(start + 610, start + 990, launched=start + 605)
        build.runtime("cudaDeviceSynchronize", start + 625, start + 995)
    evidence = Evidence.from_trace(build.read(tmp_path))
    halved = Change(kernel_scale={row.name: 0.5 for row in evidence.kernels})
    waiting, fed = evidence.what_if(halved), evidence.what_if(halved, data_ready=True)
    assert waiting.speedup[1] == pytest.approx(1000 / 810, rel=0.02)
    assert fed.before == pytest.approx(400e-6, rel=0.02)
    assert fed.speedup[1] == pytest.approx(400 / 210, rel=0.03)
