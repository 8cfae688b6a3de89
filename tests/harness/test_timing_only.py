"""A run that ends after its timing window: a repeat, for a comparison with the timing window of a full run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor import launch
from advisor.harness.layout import Options, RunRecord, Timing
from advisor.harness.plan import Plan
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK, SCRIPTS

pytestmark = pytest.mark.oldest


def run(run_dir: Path, script: str, options: Options) -> RunRecord:
    return measure(Command(str(SCRIPTS / script), python=PYTHON, cwd=str(run_dir.parent)), run_dir, options).record


def timed(record: RunRecord) -> tuple[int, int]:
    (window,) = (window for window in record.windows if window.name == "timing")
    return window.first_step, window.steps


def test_cut_run_times_the_same_steps_as_one_that_goes_on_to_profile() -> None:
    for total in range(3, 300):
        full, only = (Plan(Options(total_steps=total, windows=windows)) for windows in ("all", "timing"))
        assert (only.settle, only.timing) == (full.settle, full.timing)


def test_shortest_script_is_timed_without_a_profile() -> None:
    assert Plan(Options(total_steps=2, windows="timing")).timing == 1


@pytest.mark.slow
def test_nothing_is_profiled(tmp_path: Path) -> None:
    # Shorter than the script, however fast the machine.
    record = run(tmp_path / "run", "flat.py", replace(QUICK, windows="timing", min_seconds=0.05))
    assert record.complete and record.ended == "stopped"
    assert [window.name for window in record.windows] == ["timing"]
    assert record.timing.steps >= QUICK.min_steps and not record.timing.from_profile
    assert record.traces == record.details == [] and not list((tmp_path / "run").rglob("*.json.gz"))
    assert record.notes == [] or "run again" not in " ".join(record.notes)


@pytest.mark.slow
@pytest.mark.sessions
def test_cut_runs_time_the_same_steps(tmp_path: Path) -> None:
    full = run(tmp_path / "full", "flat.py", replace(QUICK, total_steps=80))
    only = run(tmp_path / "only", "flat.py", replace(QUICK, total_steps=80, windows="timing"))
    assert full.complete and only.complete
    assert timed(full) == timed(only) == (11, Plan(Options(total_steps=80)).timing)


@pytest.mark.slow
@pytest.mark.sessions
def test_script_that_is_over_early_is_not_run_again_for_fewer_steps(tmp_path: Path) -> None:
    full = run(tmp_path / "full", "five_steps.py", QUICK)
    only = run(tmp_path / "only", "five_steps.py", replace(QUICK, windows="timing"))
    assert only.timing.steps == full.timing.steps == 4
    assert only.ended == "finished" and only.timing.step_s is not None
    assert not any("run again" in note for note in only.notes)


@pytest.mark.sessions
def test_script_that_is_over_early_in_its_timing_window_is_run_again_once(tmp_path: Path) -> None:
    # 200 steps take less than a minute, and settle before they are over.
    record = run(tmp_path / "run", "flat.py", replace(QUICK, windows="timing", min_seconds=60.0, max_seconds=60.0))
    plan = Plan(Options(total_steps=200, windows="timing"))
    assert record.timing.steps >= (plan.timing or 0)


AFTERWARDS = """
import time
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    model(torch.randn(8, 64))
"""


@pytest.mark.sessions
@pytest.mark.parametrize(("seconds", "told"), [(6, True), (0, False)])
def test_what_a_script_does_beside_its_few_steps_is_told(seconds: int, told: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(AFTERWARDS.format(seconds=seconds))
    command = Command(script=str(path), python=PYTHON, cwd=str(tmp_path))
    notes = measure(command, tmp_path / "run", QUICK, timeout=240).record.notes
    assert any("--step forward --skip" in note for note in notes) is told


BY_DEVICE = """
import sys
import torch

# A device's own marks, as of a GPU behind the host: half a second from each to the next.
(gauges,) = [module for name, module in list(sys.modules.items()) if name.endswith("harness.machine.gauges")]
gauges.DeviceClock.seconds = lambda self: [0.5] * 100
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""


def test_a_script_that_is_over_while_it_is_timed_is_timed_by_the_device_too(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BY_DEVICE)
    options = replace(QUICK, windows="timing", min_seconds=60.0, max_seconds=60.0, total_steps=12)
    record = measure(Command(str(path), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", options).record
    assert record.timing.clock == "cuda" and record.timing.step_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("clocks", "kept"), [(("host", "cuda"), 0.2), (("cuda", "cuda"), 0.1), (("host", "host"), 0.1)]
)
def test_times_of_the_host_do_not_replace_a_device_s(
    clocks: tuple[str, str], kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter(
        RunRecord(steps=30, complete=complete, ended="finished", timing=Timing(steps=steps, step_s=step_s, clock=clock))
        for complete, steps, step_s, clock in ((False, 20, 0.1, clocks[0]), (True, 8, 0.2, clocks[1]))
    )
    monkeypatch.setattr(launch, "_once", lambda *rest: next(runs))
    monkeypatch.setattr(launch, "_clear", lambda folder: None)
    monkeypatch.setattr(launch.endings, "check", lambda *rest: None)
    (tmp_path / "run").mkdir()
    record = measure(Command("train.py", python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", Options()).record
    assert record.timing.step_s == kept
