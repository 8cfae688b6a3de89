"""Fewer threads than cores are told of where somebody asked for them, cores are idle, and more threads are faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.rule import Finding, Variable
from rules.idle_cores import IdleCores

RULE = IdleCores()


def threaded(made: Any, threads: int = 1, cores: float = 4.0, called: bool = True, variable: str = "") -> Any:
    """A step of 100 ms: a convolution of 80, and small operators."""
    environment = made.record.environment
    environment.intraop_threads, environment.usable_cpus = threads, cores
    environment.variables = {"OMP_NUM_THREADS": variable} if variable else {}
    environment.more_threads = {"product": 3.0, "convolution": 4.0, "elementwise": 2.0} if threads < cores else {}
    made.record.timing.idle_cores = cores - threads
    if called:
        made.call("set_num_threads", 7, 0.0, threads=threads)
    made.operator("aten::convolution_backward", 0.0, 80.0)
    for number in range(10):
        made.operator("aten::relu", 81.0 + number, 81.01 + number)
    return made


def found(made: Any, tmp_path: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(tmp_path)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_large_operators_are_as_much_faster_as_was_measured(scene: Any, tmp_path: Path) -> None:
    finding = found(threaded(scene(100.0)), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 7
    assert "1 thread on 4 cores, of which 3.0 have nothing to do, as train.py:7 asks for" in finding.summary
    assert finding.gain.likely == pytest.approx(100 / (20 + 80 / 4), rel=0.02)


def test_the_variable_is_given_another_value(scene: Any, tmp_path: Path) -> None:
    made = threaded(scene(100.0), called=False, variable="1")
    made.record.script = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("import torch\n")
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is None and "OMP_NUM_THREADS is 1" in finding.summary
    assert RULE.fix(finding, Sources()) == Variable({"OMP_NUM_THREADS": "4"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"threads": 4}, id="all cores"),
        pytest.param({"called": False}, id="torch's own choice"),
        pytest.param({"idle": 0.5}, id="workers compute"),
        pytest.param({"idle": None}, id="unknown"),
        pytest.param({"faster": 1.0}, id="no faster"),
    ],
)
def test_others_are_left_alone(change: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    made = threaded(scene(100.0), **{name: change[name] for name in change if name in ("threads", "called")})
    if "idle" in change:
        made.record.timing.idle_cores = change["idle"]
    if "faster" in change:
        made.record.environment.more_threads = dict.fromkeys(("product", "convolution", "elementwise"), 1.0)
    assert found(made, tmp_path) is None
