"""Debug modes are reported by what they cost in the steps, not because they were once switched on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.edit import Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Finding, Variable
from advisor.rulebook import load_rules

A100 = "NVIDIA A100-SXM4-40GB"
NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def found(made: Any, folder: Path) -> Finding | None:
    (rule,) = [each for each in load_rules() if each.id == "debug-modes-left-on"]
    findings = list(rule.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def with_anomaly_detection(scene: Any) -> Any:
    made = scene(50.0)
    made.operator("aten::addmm", 1.0, 20.0)
    made.operator(NODE, 20.0, 40.0)
    made.operator("aten::isnan", 30.0, 34.0)
    made.operator("aten::_is_any_true", 34.0, 36.0)
    made.record.tracebacks_s = 0.016
    made.record.environment.anomaly = True
    made.call("debug_mode", 3, per_step=0.0, mode="anomaly", on=True)
    return made


def test_tracebacks_and_checks_are_the_gain(scene: Any, tmp_path: Path) -> None:
    finding = found(with_anomaly_detection(scene), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 3
    # 50 ms without 16 ms of tracebacks, what keeping them takes, and 6 ms of checks
    assert finding.gain.low < 50 / (50 - 16 * 1.25 - 6) < finding.gain.high <= 2 * finding.gain.low * 1.000001


def test_more_seconds_than_the_step_has_promise_no_wonders(scene: Any, tmp_path: Path) -> None:
    made = with_anomaly_detection(scene)
    made.record.tracebacks_s = 0.049  # of another window, in which the machine was slower
    finding = found(made, tmp_path)
    assert finding is not None and finding.gain.likely <= 4.0001


def test_mode_that_is_off_again_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = with_anomaly_detection(scene)
    made.record.tracebacks_s, made.record.environment.anomaly = 0.0, False
    assert found(made, tmp_path) is None


def test_gradcheck_in_each_step_is_reported_and_one_before_the_loop_is_not(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.operator("aten::addmm", 1.0, 49.0)
    made.call("debug_mode", 4, per_step=0.0, mode="gradcheck", on=True)
    assert found(made, tmp_path) is None
    made.call("debug_mode", 9, mode="gradcheck", on=True)
    made.record.call_sites[-1].seconds_per_step = 0.02
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 9


def test_filled_memory_is_reported_where_it_costs(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.environment.deterministic = True
    made.call("debug_mode", 3, per_step=0.0, mode="deterministic", on=True)
    made.operator("aten::addmm", 1.0, 40.0)
    made.operator("aten::zeros", 40.0, 49.0)
    made.operator("aten::fill_", 40.5, 48.0)  # the script's own zeros
    assert found(made, tmp_path) is None
    made.operator("aten::empty", 2.0, 10.0)
    made.operator("aten::fill_", 2.5, 9.5)
    assert found(made, tmp_path) is not None


def test_launches_that_block_are_reported_with_the_variable(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.record.environment.variables = {"CUDA_LAUNCH_BLOCKING": "1"}
    for index in range(40):
        start = 0.1 + 0.4 * index
        made.operator("aten::add", start, start + 0.35)
        made._device("kernel", "k", 0, start + 0.05, start + 0.3, start + 0.02, start + 0.32, "cudaLaunchKernel",
                     grid=[1000, 1, 1], block=[256, 1, 1])  # fmt: skip
        for step in (1, 2):
            made._device("kernel", "k", step, start + 0.05, start + 0.3, start + 0.02, start + 0.32,
                         "cudaLaunchKernel", grid=[1000, 1, 1], block=[256, 1, 1])  # fmt: skip
    finding = found(made, tmp_path)
    assert finding is not None
    (rule,) = [each for each in load_rules() if each.id == "debug-modes-left-on"]
    assert rule.fix(finding, Sources()) == Variable({"CUDA_LAUNCH_BLOCKING": "0"})
    # A comment, or a docstring, that names it sets nothing.
    script = '"""Run with CUDA_LAUNCH_BLOCKING=1."""\n# run with CUDA_LAUNCH_BLOCKING=1\nmain()\n'
    path = str(finding.parameters["script"])
    assert rule.fix(finding, Sources({path: script})) == Variable({"CUDA_LAUNCH_BLOCKING": "0"})
    assert isinstance(rule.fix(finding, Sources({path: script + 'os.putenv("CUDA_LAUNCH_BLOCKING", "1")\n'})), Advice)
    made.record.environment.variables = {}
    assert found(made, tmp_path) is None


def profiled(made: Any, **details: Any) -> Any:
    for index in range(400):
        made.operator("aten::add", 0.1 + index / 100, 0.1 + index / 100 + 0.002)
    made.call("debug_mode", 3, per_step=0.0, mode="profiler", on=True, **details)
    site = made.record.call_sites[-1].site
    site.column, site.end_line, site.end_column = 4, 12, 86
    return made


def test_profiler_of_the_whole_training_costs_by_its_operators(scene: Any, tmp_path: Path) -> None:
    finding = found(profiled(scene(4.5), timed=True), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 3
    assert finding.evidence["profiled_operators"] == 400
    assert finding.parameters["profiler"] == (Site("/nowhere/train.py", 3),)  # a with's columns are its whole extent
    # 400 times 1 us of 4.5 ms
    assert 1.06 < finding.gain.likely < 1.12 and finding.gain.low == 1.0


def test_profiler_that_was_off_while_the_steps_were_timed_is_not_reported(scene: Any, tmp_path: Path) -> None:
    assert found(profiled(scene(4.5)), tmp_path) is None
    assert found(profiled(scene(4.5), timed=False), tmp_path) is None


def test_profiler_in_large_steps_is_not_reported(scene: Any, tmp_path: Path) -> None:
    assert found(profiled(scene(45.0), timed=True), tmp_path) is None
