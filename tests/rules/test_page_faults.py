"""Memory that each step gets anew is told of where malloc gives it back, and the process may tell malloc not to."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Options
from advisor.harness.machine.environment import glibc_version, huge_pages
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Variable
from rules.page_faults import PageFaults
from tests.conftest import PYTHON, QUICK

RULE = PageFaults()
PAGE, MEGABYTE = 4096, 1 << 20
KEEPS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}


def fresh(made: Any, faults: float = 10_000.0, system_ms: float = 25.0, allocated: int = 80 * MEGABYTE) -> Any:
    """A step of which the kernel takes so much, for so many pages, and whose operators allocate so much."""
    environment, timing = made.record.environment, made.record.timing
    environment.glibc, environment.fault_s = "2.36", 2e-6
    timing.page_faults, timing.pages_kept, timing.system_s = faults, 0.0, system_ms / 1e3
    made.record.memory.rss_peak, made.record.memory.host_available = 1 << 30, 16 << 30
    for at, size in ((1.0, allocated), (90.0, -allocated)):
        made.each("cpu_instant_event", "[memory]", at, at, **{"Bytes": size, "Device Type": 0, "Device Id": -1})
    for event in made._events:
        if event["name"] == "[memory]":
            event["ph"] = "i"
    return made


def found(made: Any, folder: Path) -> Finding | None:
    evidence = made.evidence(folder)
    findings = list(RULE.check(Evidence(evidence.trace, evidence.record, detail=evidence.trace)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def after_ms(finding: Finding) -> float:
    return 100.0 / finding.gain.likely


def test_what_the_kernel_takes_of_the_step_goes(scene: Any, tmp_path: Path) -> None:
    finding = found(fresh(scene(100.0)), tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 - 1.08 * 25.0, rel=0.01)
    assert "10,000 pages" in finding.summary and "25 ms" in finding.summary


def test_no_more_than_touching_what_is_allocated_takes(scene: Any, tmp_path: Path) -> None:
    finding = found(fresh(scene(100.0), allocated=20 * MEGABYTE), tmp_path)
    most_ms = 20 * MEGABYTE / PAGE * 2e-3
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 - 1.08 * most_ms, rel=0.01)


def test_no_more_than_so_many_faults_take(scene: Any, tmp_path: Path) -> None:
    """The rest of the time in the kernel went to files that the thread reads."""
    finding = found(fresh(scene(100.0), faults=4_000.0), tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 - 1.08 * 1.5 * 8.0, rel=0.01)
    assert found(fresh(scene(100.0), faults=200.0), tmp_path) is None
    made = fresh(scene(100.0), faults=200.0)
    made.record.environment.huge_pages = True  # of which each fault maps five hundred
    assert found(made, tmp_path) is not None


def test_a_file_that_is_mapped_has_faults_of_its_own(scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0))
    script = tmp_path / "train.py"
    script.write_text('x = numpy.load(name, mmap_mode="r")\n')
    made.record.modules = {str(script): "train"}
    assert found(made, tmp_path) is None


def test_pages_that_stay_are_not_mapped_again(scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0))
    made.record.timing.pages_kept = 5_000.0  # of 10,000
    finding = found(made, tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 - 1.08 * 12.5, rel=0.01)
    made.record.timing.pages_kept = 9_990.0
    assert found(made, tmp_path) is None


@pytest.mark.parametrize(
    ("part", "facts"),
    [
        pytest.param("environment", {"glibc": ""}, id="another C library"),
        pytest.param("environment", {"fault_s": None}, id="what a fault takes is unknown"),
        pytest.param("environment", {"variables": {"MALLOC_TRIM_THRESHOLD_": "1"}}, id="malloc is told"),
        pytest.param("environment", {"variables": {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=1"}}, id="by tunables"),
        pytest.param("environment", {"variables": {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}}, id="jemalloc"),
        pytest.param("timing", {"page_faults": None}, id="an older run"),
        pytest.param("timing", {"page_faults": 20.0}, id="few pages"),
        pytest.param("timing", {"system_s": 1e-3}, id="little time"),
        pytest.param("memory", {"rss_peak": 12 << 30}, id="most of the memory"),
    ],
)
def test_nothing_is_reported(part: str, facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0))
    assert found(made, tmp_path) is not None
    for name, value in facts.items():
        setattr(getattr(made.record, part), name, value)
    assert found(made, tmp_path) is None


def test_another_variable_of_the_environment_says_nothing(scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0))
    made.record.environment.variables = {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "/usr/lib/libiomp5.so"}
    assert found(made, tmp_path) is not None


def test_on_a_gpu_it_is_not_the_steps_memory(scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0, gpu="NVIDIA A100-SXM4-40GB"))
    made.kernel("gemm", 0.0, 90.0, 0.0)
    assert found(made, tmp_path) is None


def test_a_script_that_tells_malloc_itself_is_only_told_of(scene: Any, tmp_path: Path) -> None:
    made = fresh(scene(100.0))
    script = tmp_path / "train.py"
    made.record.script = str(script)
    for text, kind in (("import torch\n", Variable), ('FLAGS = {"MALLOC_MMAP_MAX_": "0"}\n', Advice)):
        script.write_text(text)
        finding = found(made, tmp_path)
        assert finding is not None
        assert isinstance(RULE.fix(finding, Sources()), kind)


SCRIPT = """\
import torch
from torch import nn

kept = []


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x):
        h = self.inner(x)
        return self.outer(torch.relu((h[:, None] - h).abs()))


net = Pairs()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range({steps}):
    loss = net(torch.randn({points}, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {more}
"""


def reported(folder: Path, points: int = 400, more: str = "", steps: int = 400, **variables: str) -> list[Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(points=points, more=more, steps=steps))
    command = Command(str(script), python=PYTHON, cwd=str(folder), environment=variables)
    run = measure(command, folder / "run", Options(**{**vars(QUICK), "max_seconds": 3.0}), timeout=120)
    assert run.record.timing.page_faults is not None
    return [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == RULE.id]


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.skipif(PAGE != mmap.PAGESIZE or huge_pages(), reason="pages of another size")
@pytest.mark.skipif(not glibc_version(), reason="another malloc")
def test_a_script_whose_steps_allocate_much_is_told_what_keeps_it(tmp_path: Path) -> None:
    (told,) = reported(tmp_path)
    assert told.fix.kind == "environment" and told.fix.environment == KEEPS
    assert told.evidence["page_faults"] > 20_000  # tensors of 41 MB, each of which goes back when it is freed


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"variables": KEEPS}, id="told already"),
        pytest.param({"points": 20, "steps": 20_000}, id="little memory"),
        # A new buffer in each step: its pages stay.
        pytest.param({"points": 80, "steps": 1500, "more": "kept.append(torch.ones(1 << 18))"}, id="a growing buffer"),
    ],
)
def test_a_script_whose_memory_stays_is_told_nothing(facts: dict[str, Any], tmp_path: Path) -> None:
    variables = facts.pop("variables", {})
    assert reported(tmp_path, **facts, **variables) == []
