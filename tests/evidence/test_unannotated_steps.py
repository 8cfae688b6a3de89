"""Steps of traces that nobody called ``profiler.step()`` for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Change, Evidence


def steps_of(build: Any, folder: Path) -> tuple[list[float], Any, Evidence]:
    """(where steps begin and end, in us; the steps; the evidence)."""
    evidence = Evidence.from_trace(build.read(folder))
    moments = [*evidence.steps.start.tolist(), *evidence.steps.end[-1:].tolist()]
    return [each / 1e3 for each in moments], evidence.steps, evidence


def training(build: Any, rounds: int, optimizers: tuple[str, ...] = ("Adam",)) -> Any:
    for number in range(rounds):
        at = 1000.0 * number
        build.load(at, at + 100)
        build.kernel(at + 200, at + 500, launched=at + 150)
        for place, name in enumerate(optimizers):
            build.annotation(f"Optimizer.step#{name}.step", at + 600 + 100 * place, at + 650 + 100 * place)
    return build


def test_a_step_ends_with_the_optimizer_s(builder: Any, tmp_path: Path) -> None:
    moments, steps, evidence = steps_of(training(builder(), 4), tmp_path)
    assert moments == [650, 1650, 2650, 3650] and steps.number.tolist() == [0, 1, 2]
    assert evidence.trace_step_s == pytest.approx(1e-3) and not steps.pseudo
    assert any("end with Optimizer.step" in note for note in evidence.notes)
    assert evidence.figures["steps"] == 0  # of annotations there are none


def test_of_several_optimizers_the_one_counts_that_steps_least_often(builder: Any, tmp_path: Path) -> None:
    build = training(builder(), 6)
    for number in range(0, 6, 2):
        build.annotation("Optimizer.step#SGD.step", 1000.0 * number + 800, 1000.0 * number + 900)
    assert steps_of(build, tmp_path)[0] == [900, 2900, 4900]


def test_without_an_optimizer_a_step_ends_with_the_next_batch(builder: Any, tmp_path: Path) -> None:
    moments, _, evidence = steps_of(training(builder(), 4, ()), tmp_path)
    assert moments == [1000, 2000, 3000]  # the first one waits for workers to start
    assert any("a loader's next batch" in note for note in evidence.notes)


@pytest.mark.parametrize("rounds", [1, 2])
def test_two_rounds_are_too_few(rounds: int, builder: Any, tmp_path: Path) -> None:
    assert steps_of(training(builder(), rounds), tmp_path)[1].pseudo


def test_annotated_steps_come_first(builder: Any, tmp_path: Path) -> None:
    build = training(builder(), 4)
    build.step(7, 0, 2000)
    moments, steps, evidence = steps_of(build, tmp_path)
    assert moments == [0, 2000] and steps.number.tolist() == [7] and not evidence.steps.boundary


def running_ahead(build: Any, device_us: float) -> Any:
    """Five steps of 100 us for a host that launches and never waits; each is so long for the device."""
    at = 0.0
    for number in range(5):
        build.step(number, 100.0 * number, 100.0 * number + 100)
        build.operator("aten::mm", 100.0 * number + 5, 100.0 * number + 30)
        launched = 100.0 * number + 10
        at = max(at, launched + 10)
        build.kernel(at, at + device_us, "ampere_sgemm_128x64_tn", launched=launched)
        at += device_us
    return build


def test_a_device_far_behind_the_host_has_windows_of_its_own(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(running_ahead(builder(), 3000).read(tmp_path))
    assert evidence.device_steps.behind and evidence.trace_step_s == pytest.approx(3e-3, rel=0.01)
    assert evidence.breakdown.shares["kernel"] > 0.99
    assert any("far ahead" in note for note in evidence.notes)
    # Half as long kernels are half as long steps; a host without synchronizations has nothing to gain.
    faster = evidence.what_if(Change(kernel_scale={"ampere_sgemm_128x64_tn": 0.5}))
    assert faster.speedup[1] == pytest.approx(2.0, rel=0.05)
    assert evidence.what_if(Change(launch_scale=0.1)).speedup[1] == pytest.approx(1.0, abs=0.01)


def test_a_device_that_keeps_up_has_the_host_s_windows(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(running_ahead(builder(), 60).read(tmp_path))
    assert not evidence.device_steps.behind and evidence.trace_step_s == pytest.approx(1e-4)


def test_a_device_without_launches_in_the_file_is_taken_as_it_is(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(0, 0, 100)
    build.step(1, 100, 200)
    build.kernel(10, 5000)
    assert not Evidence.from_trace(build.read(tmp_path)).device_steps.behind


@pytest.mark.parametrize("late", [[3000.0] * 5, [0.0] * 4 + [3000.0]])
def test_a_device_that_stays_as_far_behind_takes_as_long_as_its_host(
    late: list[float], builder: Any, tmp_path: Path
) -> None:
    """A queue that was full when the trace began; and one step at the end that waited for another rank."""
    build = builder()
    for number, behind in enumerate(late):
        at = 1000.0 * number
        build.step(number, at, at + 1000)
        build.kernel(at + behind + 20, at + behind + 1000, launched=at + 10)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.trace_step_s == pytest.approx(1e-3, rel=0.02)
    assert evidence.device_steps.behind == (late[0] > 0)


def test_what_the_host_does_is_found_in_its_own_windows(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(running_ahead(builder(), 3000).read(tmp_path))
    (row,) = [each for each in evidence.operators if each.name == "aten::mm"]
    assert row.count == 1.0 and len(evidence.device_steps) == len(evidence.steps) == 5


def test_halves_of_a_step_that_bear_one_name_are_one(builder: Any, tmp_path: Path) -> None:
    """A GAN whose two optimizers are of one class."""
    build = builder()
    for number in range(12):
        at = 1000.0 * number
        for place in range(30 if number % 2 else 8):
            build.operator("aten::mm", at + 10 * place, at + 10 * place + 5)
        build.kernel(at + 50, at + 500, launched=at + 20)
        build.annotation("Optimizer.step#Adam.step", at + 600, at + 700)
    moments, steps, _ = steps_of(build, tmp_path)
    assert len(steps) == 5 and moments[1] - moments[0] == 2000
