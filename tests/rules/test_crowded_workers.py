"""Workers that keep up, and have the cores that the step needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.harness.layout import FetchPart, Site
from advisor.rule import Finding
from rules.slow_collate import SlowCollate
from rules.slow_transform import SlowTransform

ROOMS = """import numpy as np

class Rooms:
    def __getitem__(self, i):
        return np.convolve(self.waves[i], self.rooms[i % 7])

def together(samples):
    return [each for each in samples]
"""


def crowded(made: Any, tmp_path: Path, kind: str = "convolve", cpu_ms: float = 90.0, cores: float = 2.0) -> str:
    """Two workers that take `cpu_ms` for each batch, of a step of 100 ms that waits for 1; the script's path."""
    path = tmp_path / "rooms.py"
    path.write_text(ROOMS)
    loader = made.loader(wait_ms=1.0, fetch_ms=150.0, cpu_ms=cpu_ms, num_workers=2)
    made.record.script = loader.dataset_file = str(path)
    loader.looks, loader.look_s, loader.epochs, loader.item_lines, loader.collate_calls = 2, 0.15, 3, 1.0, 300.0
    loader.parts = [
        FetchPart("line", "__getitem__", Site(str(path), 5, function="__getitem__"), 0.149),
        FetchPart(kind, "convolve", Site(str(path), 5, function="convolve"), 0.14, 0, 32000, 9000),
    ]
    timing = made.record.timing
    timing.idle_cores, timing.cpu_s = 0.0, 0.11
    made.record.environment.usable_cpus, made.record.environment.intraop_threads = cores, 2
    return str(path)


def told(made: Any, tmp_path: Path) -> Finding | None:
    return next(iter(SlowTransform().check(made.evidence(tmp_path))), None)


def test_what_workers_compute_is_told_of_where_no_core_is_left_for_them(scene: Any, tmp_path: Path) -> None:
    made = scene(100.0)
    crowded(made, tmp_path)
    finding = told(made, tmp_path)
    assert finding is not None and finding.parameters["kind"] == "convolve"
    assert "No core is idle, and of 2 the workers take 0.9 from the step." in finding.summary
    # Alone the step computes with both cores for what 0.11 s of CPU are at best.
    assert 1.2 < finding.gain.likely < 100 / 55 * 2


@pytest.mark.parametrize("why", ["idle", "unknown", "gpu", "cores", "little", "in line"])
def test_workers_that_have_cores_of_their_own_cost_the_step_nothing(why: str, scene: Any, tmp_path: Path) -> None:
    made = scene(100.0, gpu="NVIDIA A100") if why == "gpu" else scene(100.0)
    crowded(made, tmp_path, cpu_ms=15.0 if why == "little" else 90.0, cores=16.0 if why == "cores" else 2.0)
    timing = made.record.timing
    if why in ("idle", "unknown"):
        timing.idle_cores = 0.9 if why == "idle" else None
    if why == "in line":
        made.record.loaders[0].num_workers = 0
    assert told(made, tmp_path) is None


def test_what_only_computes_much_is_not_told_of_where_nothing_waits(scene: Any, tmp_path: Path) -> None:
    made = scene(100.0)
    crowded(made, tmp_path, kind="transform")
    assert told(made, tmp_path) is None
    made.record.loaders[0].wait_s = 0.06  # then it is, with what a cheaper version may save
    made.record.timing.loader_wait_s = [0.06] * 40
    finding = told(made, tmp_path)
    assert finding is not None and finding.parameters["kind"] == "heavy"


@pytest.mark.parametrize(("blur", "told_of"), [("gaussian_blur(x, [49, 49])", True), ("brightened(x)", False)])
def test_a_wide_blur_has_a_cheaper_form(blur: str, told_of: bool, scene: Any, tmp_path: Path) -> None:
    made = scene(100.0)
    path = crowded(made, tmp_path, kind="transform")
    Path(path).write_text(ROOMS + f"\nclass Flat:\n    def forward(self, x):\n        return x - {blur}\n")
    made.record.loaders[0].parts[1] = FetchPart("transform", "Flat", Site(path, 11), 0.14, 0, 25600, 25600)
    finding = told(made, tmp_path)
    assert (finding is not None) is told_of
    if finding is not None:
        assert finding.parameters["kind"] == "blur" and finding.site == Site(path, 11)
        assert "of 2 the workers take 0.9 from the step" in finding.summary and finding.gain.likely > 1.2


def test_a_collate_function_in_crowded_workers(scene: Any, tmp_path: Path) -> None:
    made = scene(100.0)
    path = crowded(made, tmp_path)
    loader = made.record.loaders[0]
    loader.parts = [FetchPart("collate", "together", Site(path, 7, function="together"), 0.14)]
    loader.collate = "rooms.together"
    loader.collate_lines = 900.0
    finding = next(iter(SlowCollate().check(made.evidence(tmp_path))), None)
    assert finding is not None and "of 2 the workers take 0.9 from the step" in finding.summary
    made.record.timing.idle_cores = 0.9
    assert not list(SlowCollate().check(made.evidence(tmp_path)))
