"""Batches made ahead: offered where single fetches are waited for, and enough of them fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.loader_prefetch import LoaderPrefetch

from advisor.rule import Finding

STEP, USUAL, SLOW = 0.012, 0.002, 0.3


def run(scene: Any, fetches: list[list[float]], wait: float, **facts: Any) -> Any:
    """A step that computes for 12 ms and waits on average `wait` seconds for two workers' batches."""
    made = scene((STEP + wait) * 1e3)
    given: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True, **facts}
    loader = made.loader(wait * 1e3, 1e3 * sum(map(sum, fetches)) / sum(map(len, fetches)), 1.0, **given)
    loader.fetches = fetches
    made.operator("aten::mm", wait * 1e3, (STEP + wait) * 1e3)
    return made


def bursts(length: int = 20) -> list[list[float]]:
    return [[SLOW if i % length == 5 else USUAL for i in range(4 * length)] for _ in range(2)]


# Both workers' slow batches are waited for at once, for 0.3 s less the four steps ahead, every 40 batches.
WAIT = (SLOW - 4 * STEP) / 40


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(LoaderPrefetch().check(made.evidence(folder)))
    return findings[0] if findings else None


def test_bursts_are_absorbed_by_as_many_batches_as_it_takes(scene: Any, tmp_path: Path) -> None:
    finding = found(run(scene, bursts(), WAIT), tmp_path)
    assert finding is not None
    assert finding.parameters["factor"] == 16, "0.3 s are 25 steps: 8 for each worker are too few"
    assert finding.gain.likely == pytest.approx((STEP + WAIT) / STEP, rel=0.02)
    assert finding.gain.low <= finding.gain.likely <= finding.gain.high


@pytest.mark.parametrize(
    ("fetches", "wait", "facts"),
    [
        pytest.param([[USUAL] * 80] * 2, WAIT, {}, id="no-burst"),
        pytest.param([[0.05] * 80] * 2, 0.013, {}, id="too-slow-on-the-whole"),
        pytest.param(bursts(), 0.0001, {}, id="not-waited-for"),
        pytest.param(bursts(), WAIT, {"prefetch_factor": 32}, id="many-ahead-already"),
        pytest.param(bursts()[:1], WAIT, {}, id="one-worker-unknown"),
    ],
)
def test_left_alone(fetches: list[list[float]], wait: float, facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(run(scene, fetches, wait, **facts), tmp_path) is None


def test_batches_must_fit_into_shared_memory(scene: Any, tmp_path: Path) -> None:
    made = run(scene, bursts(), WAIT)
    size = made.record.loaders[0].tensors[0].bytes
    made.record.environment.shm_bytes = 2 * 2 * 8 * size
    finding = found(made, tmp_path)
    assert finding is not None and finding.parameters["factor"] == 8
    made.record.environment.shm_bytes = 2 * 2 * 2 * size
    assert found(made, tmp_path) is None


def test_wait_that_the_fetches_do_not_explain_stays(scene: Any, tmp_path: Path) -> None:
    """Half of the wait is for something else: no more than the other half is promised."""
    finding = found(run(scene, bursts(), 2 * WAIT), tmp_path)
    assert finding is not None
    assert finding.gain.likely == pytest.approx((STEP + 2 * WAIT) / (STEP + WAIT), rel=0.03)
