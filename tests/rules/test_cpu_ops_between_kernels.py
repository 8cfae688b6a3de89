"""Work of the CPU's in a GPU's step: told from loading, from reading a number, and from what the GPU hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.cpu_ops_between_kernels import CpuOpsBetweenKernels

from advisor.edit import Sources
from advisor.harness.layout import CallSite, Site
from advisor.rule import Advice, Finding

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
UP, DOWN = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"
SIZE = 4 << 20


def launching(made: Any, begin: float, count: int = 40) -> None:
    """Operators that launch, one after the other, without any lead over the GPU."""
    for index in range(count):
        start = begin + 0.1 * index
        made.operator("aten::mul", start, start + 0.02)
        made.kernel(KERNEL, start + 0.03, start + 0.09, launched=start + 0.005)


def augmenting(scene: Any, name: str = "aten::where", ms: float = 6.0) -> Any:
    """A step of 20 ms: the CPU works for `ms` on the batch, which is then copied; the GPU works for 4."""
    made = scene(20.0, A100)
    made.each("user_annotation", LOADING, 0.1, 0.9)
    made.operator(name, 1.0, 1.0 + ms)
    made.operator("aten::view", 7.1, 7.11)
    made.operator("aten::to", 7.2, 8.2)
    made.copy(UP, 7.4, 8.1, SIZE, launched=7.3, returned=7.5)
    made.each("cuda_runtime", "cudaStreamSynchronize", 7.6, 8.15)
    launching(made, 9.0)
    details = {"from_device": "cpu", "to_device": "cuda", "bytes": SIZE}
    made.record.call_sites.append(CallSite("Tensor.to", Site("/nowhere/train.py", 14), 40, 1.0, 0.0, details))
    return made


def fetching(scene: Any, size: int = SIZE, ms: float = 8.0, batch: bool = True) -> Any:
    """A step of 20 ms: a batch goes up, something comes down, Python works on it unseen, and it goes up again."""
    made = scene(20.0, A100)
    if batch:
        made.operator("aten::to", 0.0, 0.04)
        made.copy("Memcpy HtoD (Pinned -> Device)", 0.05, 0.08, SIZE, launched=0.01, returned=0.02)
    launching(made, 0.1)
    made.operator("aten::to", 4.5, 5.0)
    made.copy(DOWN, 4.6, 4.8, size, launched=4.55, returned=4.95)
    made.operator("aten::lift_fresh", 4.9 + ms, 4.91 + ms)
    made.operator("aten::to", 5.0 + ms, 5.5 + ms)
    made.copy(UP, 5.2 + ms, 5.4 + ms, SIZE, launched=5.1 + ms, returned=5.3 + ms)
    launching(made, 14.0)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(CpuOpsBetweenKernels().check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_a_line_that_copies_several_tensors_is_named_where_no_other_fits(scene: Any, tmp_path: Path) -> None:
    """``boxes, labels, scores = (t.to(device) for t in targets)``: what is known of it are the last one's bytes."""
    made = augmenting(scene)
    site = made.record.call_sites[-1]
    site.details["bytes"], site.calls_per_step = 134_400, 4.0
    made.call("Tensor.to", 9, from_device="cpu", to_device="cuda", bytes=19_660_800, pinned=True)
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 14


def test_an_augmentation_before_the_copy_is_found_at_the_copy(scene: Any, tmp_path: Path) -> None:
    finding = found(augmenting(scene), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 14
    assert finding.evidence["cpu_s"] == pytest.approx(5.99e-3) and finding.evidence["operators"] == "where"
    assert finding.evidence["round_trips_per_step"] == 0
    assert finding.gain.low <= 20 / 14 <= finding.gain.high <= 2.000001 * finding.gain.low
    fix = CpuOpsBetweenKernels().fix(finding, Sources())
    assert isinstance(fix, Advice) and "train.py:14" in fix.text


def test_a_round_trip_is_found_though_nothing_of_it_is_torchs(scene: Any, tmp_path: Path) -> None:
    finding = found(fetching(scene), tmp_path)
    assert finding is not None and finding.evidence["round_trips_per_step"] == 1
    assert finding.evidence["cpu_s"] == pytest.approx(7.99e-3, rel=0.01)
    assert finding.gain.likely > 1.5


@pytest.mark.parametrize("name", ["aten::stack", "aten::pin_memory", "aten::randn", "aten::index_select"])
def test_what_other_rules_speak_of_is_left_to_them(name: str, scene: Any, tmp_path: Path) -> None:
    assert found(augmenting(scene, name), tmp_path) is None


def test_a_number_that_is_read_has_nothing_to_do_with_the_next_batch(scene: Any, tmp_path: Path) -> None:
    assert found(fetching(scene, size=4), tmp_path) is None
    assert found(fetching(scene, size=SIZE // 64), tmp_path) is None


def test_short_work_of_the_cpus_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(augmenting(scene, ms=0.3), tmp_path) is None


def test_work_inside_the_loader_is_the_loaders(scene: Any, tmp_path: Path) -> None:
    made = augmenting(scene)
    made.each("user_annotation", LOADING, 0.5, 7.05)
    assert found(made, tmp_path) is None
    made = fetching(scene)
    made.each("user_annotation", LOADING, 6.0, 12.0)
    assert found(made, tmp_path) is None


def test_metrics_of_the_last_batch_are_no_stage_of_the_next(scene: Any, tmp_path: Path) -> None:
    made = augmenting(scene, "aten::argmax")
    made._events = [each for each in made._events if each["name"] != LOADING]
    made.each("user_annotation", LOADING, 7.0, 7.05)  # behind the metrics, in front of the copy
    assert found(made, tmp_path) is None
    # Nor where no loader tells them apart: what came down may be about the batch before.
    assert found(fetching(scene, batch=False), tmp_path) is None


def test_an_optimizer_on_the_cpu_is_meant_to_be_there(scene: Any, tmp_path: Path) -> None:
    made = augmenting(scene, "aten::addcdiv_")
    made.each("user_annotation", "Optimizer.step#AdamW.step", 0.5, 7.05)
    assert found(made, tmp_path) is None


def test_work_that_the_gpu_hides_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.each("user_annotation", LOADING, 0.1, 0.9)
    made.operator("aten::mm", 0.0, 0.02)
    made.kernel("ampere_sgemm_128x64_tn", 0.02, 19.9, launched=0.005)
    made.operator("aten::where", 1.0, 7.0)
    made.operator("aten::to", 7.2, 7.3)
    made.copy("Memcpy HtoD (Pinned -> Device)", 19.9, 19.95, SIZE, launched=7.22, returned=7.23)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 8.0, 19.98)
    assert found(made, tmp_path) is None


def test_a_cpu_run_has_no_such_stage(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0)
    made.operator("aten::where", 1.0, 7.0)
    assert found(made, tmp_path) is None
