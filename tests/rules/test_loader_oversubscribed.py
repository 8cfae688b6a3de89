"""More threads than cores are reported where the operators' times say that they cost something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.rule import Advice, Finding, Variable
from rules.loader_oversubscribed import LoaderOversubscribed

RULE = LoaderOversubscribed()


def threaded(made: Any, threads: int = 32, cores: float = 2.0) -> Any:
    made.record.environment.intraop_threads = threads
    made.record.environment.usable_cpus = cores
    made.record.environment.variables = {"OMP_NUM_THREADS": str(threads)}
    made.call("set_num_threads", 7, 0.0, threads=threads)
    return made


def small_operators(made: Any) -> Any:
    for number in range(40):
        made.operator("aten::gelu", 2.0 * number, 2.0 * number + 1.5)
    return made


def found(made: Any, tmp_path: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(tmp_path)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_many_threads_for_small_operators_are_found(scene: Any, tmp_path: Path) -> None:
    finding = found(small_operators(threaded(scene(100.0))), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 7
    assert "32 threads on 2 cores, as train.py:7 asks for" in finding.summary
    assert finding.gain.high <= 2.000001 * finding.gain.low
    # 40 operators, each 30 threads of 30 µs too long: 36 of 100 ms.
    assert finding.gain.likely == pytest.approx(100 / 64, rel=0.02)


@pytest.mark.parametrize(
    ("forward_ms", "after_ms"), [(0.3, 90 / 12.8), (4.0, 12.0)], ids=["threads per core", "forward"]
)
def test_backward_that_spins_shrinks_as_far_as_can_be_said(
    forward_ms: float, after_ms: float, scene: Any, tmp_path: Path
) -> None:
    made = threaded(scene(100.0))
    made.operator("aten::mkldnn_convolution", 0.0, forward_ms)
    made.operator("aten::convolution_backward", 5.0, 95.0)
    finding = found(made, tmp_path)
    assert finding is not None
    assert finding.gain.likely == pytest.approx(100 / (10 + after_ms), rel=0.1)


@pytest.mark.parametrize(("threads", "cores"), [(2, 2.0), (3, 2.0), (32, 32.0)])
def test_as_many_threads_as_cores_are_right(threads: int, cores: float, scene: Any, tmp_path: Path) -> None:
    assert found(small_operators(threaded(scene(100.0), threads, cores)), tmp_path) is None


def test_threads_of_matrix_products_are_bounded_already(scene: Any, tmp_path: Path) -> None:
    made = threaded(scene(100.0))
    for number in range(20):
        made.operator("aten::addmm", 5.0 * number, 5.0 * number + 4.9)
    assert found(made, tmp_path) is None


def test_large_operators_hardly_notice(scene: Any, tmp_path: Path) -> None:
    made = threaded(scene(100.0))
    made.operator("aten::gelu", 0.0, 90.0)
    assert found(made, tmp_path) is None


def test_threads_of_a_gpu_run_are_not_the_step(scene: Any, tmp_path: Path) -> None:
    made = threaded(scene(100.0, "NVIDIA A100-SXM4-40GB"))
    assert found(small_operators(made), tmp_path) is None


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "32"', 'os.environ["OMP_NUM_THREADS"] = "2"'),
        ("os.environ.setdefault('OMP_NUM_THREADS', '32')", "os.environ.setdefault('OMP_NUM_THREADS', '2')"),
        ('os.environ["OMP_NUM_THREADS"] = str(2**5)', None),
        ("import torch", None),
    ],
)
def test_the_variable_is_set_where_it_is_set(line: str, fixed: str | None, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os\n{line}\n")
    made = small_operators(threaded(scene(100.0)))
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "set_num_threads"]
    made.record.script = str(script)
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    if fixed is not None:
        assert finding.site is not None and finding.site.line == 2
        assert isinstance(fix, Edit) and fix.texts[str(script)] == f"import os\n{fixed}\n"
    elif line == "import torch":
        assert fix == Variable({"OMP_NUM_THREADS": "2"})
    else:
        assert isinstance(fix, Advice)
