"""DataParallel is reported by the time that its copies between GPUs take of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.rule import Finding
from advisor.rulebook import load_rules

V100 = "Tesla V100-SXM2-16GB"


def found(made: Any, folder: Path) -> Finding | None:
    (rule,) = [each for each in load_rules() if each.id == "dataparallel-to-ddp"]
    findings = list(rule.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def wrapped(scene: Any, copying_ms: float, devices: int = 4) -> Any:
    """Steps of 50 ms in which the host is always busy: copies between GPUs first, then the launches of kernels."""
    made = scene(50.0, gpu=V100)
    made.call("DataParallel", 6, per_step=0.0, devices=devices, compiled=False)
    made.operator("Scatter", 0.0, copying_ms / 4)
    made.operator("Broadcast", copying_ms / 4, copying_ms)
    for number in range(40):
        start = copying_ms + number * (49.0 - copying_ms) / 40
        made.operator("aten::mm", start, start + (49.0 - copying_ms) / 40)
        made.kernel("volta_sgemm_128x64_tn", start + 0.1, start + 0.2, launched=start + 0.02)
    return made


def test_copies_between_gpus_are_the_gain(scene: Any, tmp_path: Path) -> None:
    finding = found(wrapped(scene, 20.0), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 6
    assert finding.gain.low == 1.0 < 1.3 < finding.gain.likely < 50 / 28


def test_copies_that_take_no_time_are_not_reported(scene: Any, tmp_path: Path) -> None:
    assert found(wrapped(scene, 1.0), tmp_path) is None


def test_a_single_gpu_has_nothing_to_copy_to(scene: Any, tmp_path: Path) -> None:
    assert found(wrapped(scene, 20.0, devices=1), tmp_path) is None
