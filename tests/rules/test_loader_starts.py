"""Workers that each epoch starts anew: kept, where that is worth something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.loader_workers import LoaderWorkers

from advisor.rule import Finding


def run(scene: Any, **facts: Any) -> Any:
    """Epochs of 20 batches of 10 ms, each of which waits 0.15 s for its first batch."""
    made = scene(10.0)
    loader = made.loader(0.1, 5.0, 1.0, num_workers=2, persistent_workers=False)
    loader.epochs, loader.batches, loader.start_s = 5, 20, 0.15
    for name, value in facts.items():
        setattr(loader, name, value)
    made.operator("aten::mm", 0.1, 10.0)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(LoaderWorkers().check(made.evidence(folder)))
    return findings[0] if findings else None


def test_workers_started_for_each_short_epoch_are_kept(scene: Any, tmp_path: Path) -> None:
    finding = found(run(scene), tmp_path)
    assert finding is not None
    assert finding.parameters["workers"] == finding.parameters["recorded"] == 2
    assert "20 batches" in finding.summary and "0.15 s" in finding.summary
    # 150 ms over 20 steps of 10 ms.
    assert finding.gain.likely == pytest.approx(1.75, rel=0.02)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"persistent_workers": True}, id="kept-already"),
        pytest.param({"epochs": 1}, id="one-epoch"),
        pytest.param({"batches": 2000}, id="long-epochs"),
        pytest.param({"batches": None}, id="endless"),
        pytest.param({"start_s": None}, id="not-measured"),
        pytest.param({"num_workers": 0}, id="no-workers"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(run(scene, **facts), tmp_path) is None
