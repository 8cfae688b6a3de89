"""Steps of traces that nobody called ``profiler.step()`` for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence


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
    assert moments == [0, 1000, 2000, 3000]
    assert any("a loader's next batch" in note for note in evidence.notes)


@pytest.mark.parametrize("rounds", [1, 2])
def test_two_rounds_are_too_few(rounds: int, builder: Any, tmp_path: Path) -> None:
    assert steps_of(training(builder(), rounds), tmp_path)[1].pseudo


def test_annotated_steps_come_first(builder: Any, tmp_path: Path) -> None:
    build = training(builder(), 4)
    build.step(7, 0, 2000)
    moments, steps, evidence = steps_of(build, tmp_path)
    assert moments == [0, 2000] and steps.number.tolist() == [7] and not evidence.steps.boundary
