"""What OpenBLAS's threads take is lost to PyTorch's operators, where these want all cores, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence.loading.spinning import gain_without_fetching_s, operators_gain_s
from advisor.rule import Advice, Finding, Variable
from rules.openblas_threads import OpenblasThreads

RULE = OpenblasThreads()


def beside(made: Any, openblas_ms: float, threads: int = 2, intraop: int = 2, cores: float = 2.0) -> Any:
    """Threads of OpenBLAS that take so much in each step, outside of the making of batches."""
    environment, timing = made.record.environment, made.record.timing
    environment.openblas_threads, environment.intraop_threads, environment.usable_cpus = threads, intraop, cores
    timing.openblas_s, timing.idle_cores = openblas_ms / 1e3, 0.0
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def after_ms(finding: Finding) -> float:
    return 100.0 / finding.gain.likely


def test_a_second_beside_the_operators_costs_them_a_second(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 60.0)
    made.operator("aten::mm", 0.0, 100.0)
    finding = found(made, tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(40.0, rel=0.02)
    assert "among 2 threads" in finding.summary and "60.0 ms" in finding.summary


def test_what_python_takes_leaves_a_core_for_them(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 60.0)
    made.operator("aten::mm", 0.0, 80.0)
    finding = found(made, tmp_path)
    # Of 20 ms of Python, 2.5 were lost to a product that waited for its threads.
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 - (60.0 - 17.5), rel=0.02)


@pytest.mark.parametrize(
    ("openblas_ms", "settings"),
    [
        pytest.param(0.0, {}, id="no-product"),
        pytest.param(2.0, {}, id="seldom"),
        pytest.param(60.0, {"cores": 4.0}, id="cores-are-left"),
        pytest.param(60.0, {"intraop": 1}, id="one-thread-for-operators"),
        pytest.param(0.0, {"threads": 1}, id="one-thread"),
    ],
)
def test_nothing_is_lost(openblas_ms: float, settings: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), openblas_ms, **settings)
    made.operator("aten::mm", 0.0, 100.0)
    assert found(made, tmp_path) is None


def test_on_a_gpu_the_operators_do_not_want_the_cores(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0, gpu="NVIDIA A100-SXM4-40GB"), 60.0)
    made.kernel("gemm", 0.0, 90.0, 0.0)
    assert found(made, tmp_path) is None


def test_large_products_may_lose_as_much_as_is_gained(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 70.0)
    made.operator("aten::mm", 0.0, 50.0)
    assert found(made, tmp_path) is None


def test_what_they_take_while_a_batch_is_made_is_not_taken_from_the_operators(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 70.0)
    made.loader(wait_ms=20.0, fetch_ms=20.0, cpu_ms=20.0, num_workers=0, openblas_s=0.02)
    made.operator("aten::mm", 20.0, 100.0)
    finding = found(made, tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(50.0, rel=0.02)


def test_a_loader_without_workers_has_none(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 20.0)
    made.loader(wait_ms=20.0, fetch_ms=20.0, cpu_ms=20.0, num_workers=0, openblas_s=0.02)
    made.operator("aten::mm", 20.0, 100.0)
    assert found(made, tmp_path) is None


def test_batches_for_a_gpu_are_made_faster_by_what_they_take(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0, gpu="NVIDIA A100-SXM4-40GB"), 0.0)
    loader = made.loader(wait_ms=80.0, fetch_ms=190.0, cpu_ms=95.0, num_workers=2, openblas_s=0.095)
    made.kernel("gemm", 80.0, 99.0, 80.0)
    finding = found(made, tmp_path)
    assert finding is not None and finding.gain.likely > 1.3
    loader.openblas_s = 0.001
    assert found(made, tmp_path) is None


def test_of_many_cores_they_take_a_small_part(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 0.0, threads=16, intraop=16, cores=16.0)
    made.loader(wait_ms=0.0, fetch_ms=80.0, cpu_ms=20.0, num_workers=2, openblas_s=0.15)
    made.operator("aten::mm", 0.0, 100.0)
    finding = found(made, tmp_path)
    assert finding is not None and after_ms(finding) == pytest.approx(100.0 * (1 - 2.3 * 1.5 / 16), rel=0.05)


def test_threads_of_workers_take_the_cores_of_all(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 0.0)
    made.loader(wait_ms=0.0, fetch_ms=80.0, cpu_ms=20.0, num_workers=2, openblas_s=0.05)
    made.operator("aten::mm", 0.0, 100.0)
    finding = found(made, tmp_path)
    assert finding is not None and "in the loader's workers" in finding.summary
    assert after_ms(finding) == pytest.approx(100.0 - 1.15 * 50.0, rel=0.02)
    made.record.timing.idle_cores = 0.5
    assert found(made, tmp_path) is None


def test_it_is_set_from_outside_unless_the_script_sets_it(scene: Any, tmp_path: Path) -> None:
    made = beside(scene(100.0), 60.0)
    made.operator("aten::mm", 0.0, 100.0)
    script = tmp_path / "train.py"
    made.record.script = str(script)
    script.write_text("import numpy as np\n")
    finding = found(made, tmp_path)
    assert finding is not None and RULE.fix(finding, Sources()) == Variable({"OPENBLAS_NUM_THREADS": "1"})
    other = tmp_path / "other.py"
    other.write_text('import os\nos.environ["OPENBLAS_NUM_THREADS"] = "2"\nimport numpy as np\n')
    made.record.script = str(other)
    finding = found(made, tmp_path)
    assert finding is not None and isinstance(RULE.fix(finding, Sources()), Advice)


@pytest.mark.parametrize(
    ("from_ms", "openblas_s", "workers", "gains"),
    [
        pytest.param(20.0, 0.02, 0, True, id="the loader's products"),
        pytest.param(45.0, 0.02, 0, False, id="somebody else's, maybe"),
        pytest.param(20.0, None, 0, False, id="no products of a loader's"),
        pytest.param(20.0, 0.02, 2, False, id="in workers"),
    ],
)
def test_a_loader_that_multiplies_no_more_leaves_none_awake(
    scene: Any, tmp_path: Path, from_ms: float, openblas_s: float | None, workers: int, gains: bool
) -> None:
    made = beside(scene(100.0), 70.0)
    made.loader(wait_ms=20.0, fetch_ms=20.0, cpu_ms=20.0, num_workers=workers, openblas_s=openblas_s)
    made.operator("aten::mm", from_ms, 100.0)
    evidence = made.evidence(tmp_path)
    saved = gain_without_fetching_s(evidence, evidence.loaders[0])
    assert saved == (pytest.approx(operators_gain_s(evidence)) if gains else 0.0)
    assert not gains or saved > 0.04
