"""Copies that nothing hides although they block nothing: found where kernels could run meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.copy_overlap import CopyOverlap

from advisor.edit import Sources
from advisor.harness.layout import TensorInfo
from advisor.rule import Finding

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"
PINNED = "Memcpy HtoD (Pinned -> Device)"
SIZE = 48 << 20


def copying(
    scene: Any, copied_ms: float = 4.0, stream: int = 7, memory: str = PINNED, pinned: bool = True, owner: str = ""
) -> Any:
    """A step of 20 ms that begins with the batch's copy; the host launches all of it in the first millisecond."""
    made = scene(20.0, A100)
    loader = made.loader(0.01, 15.0, 15.0, num_workers=4, pin_memory=pinned, owner=owner)
    loader.tensors = [TensorInfo([256, 3, 128, 128], "float32", "cpu", pinned, SIZE)]
    made.operator("aten::to", 0.02, 0.08)
    made.copy(memory, 0.1, 0.1 + copied_ms, SIZE, launched=0.03, returned=0.05, stream=stream)
    start = 0.15 + copied_ms if stream == 7 else 0.15
    for index in range(10):
        made.kernel(KERNEL, start, start + (19.95 - copied_ms) / 10 - 0.03, launched=0.2 + 0.01 * index)
        start += (19.95 - copied_ms) / 10
    made.call("Tensor.to", 14, from_device="cpu", to_device="cuda", non_blocking=True, bytes=SIZE)
    # The loss is read at the step's end, so the host is not ahead by more than this step.
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.5, 19.97)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(CopyOverlap().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def test_a_copy_in_line_with_the_kernels_is_found(scene: Any, tmp_path: Path) -> None:
    finding = found(copying(scene), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 14
    assert finding.gain.likely == pytest.approx(20 / 16, rel=0.03)
    assert finding.evidence["h2d_exposed_s"] == pytest.approx(4e-3, rel=0.01)
    fix = CopyOverlap().fix(finding, Sources())
    assert "train.py:14" in fix.text and "record_stream" in fix.text


@pytest.mark.parametrize(("pinned", "reported"), [(True, True), (False, False)])
def test_batches_need_not_come_from_a_loader(pinned: bool, reported: bool, scene: Any, tmp_path: Path) -> None:
    """Fields of weather cut out of a pinned archive, on an H200: 581 MB a step, and no DataLoader at all."""
    made = copying(scene)
    made.record.loaders.clear()
    for each in made.record.call_sites:
        each.details["pinned"] = pinned
    finding = found(made, tmp_path)
    assert (finding is not None) is reported


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"copied_ms": 0.3}, id="short"),
        pytest.param({"stream": 21}, id="on-a-stream-of-its-own"),
        pytest.param({"memory": "Memcpy HtoD (Pageable -> Device)"}, id="pageable-is-another-rule"),
        pytest.param({"pinned": False}, id="not-the-loader-s-pinned-batch"),
        pytest.param({"copied_ms": 12.0}, id="longer-than-the-rest"),
        pytest.param({"owner": "transformers.trainer"}, id="a-framework-s-loop"),
    ],
)
def test_left_alone(arguments: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(copying(scene, **arguments), tmp_path) is None


def test_a_framework_that_copies_the_user_s_loader_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = copying(scene)
    made.call("Accelerator", 3, 0.0)
    assert found(made, tmp_path) is None


def test_a_bare_trace_tells_by_what_each_step_begins_with(scene: Any, tmp_path: Path) -> None:
    (finding,) = CopyOverlap().check(copying(scene).bare(tmp_path))
    assert finding.gain.likely == pytest.approx(20 / 16, rel=0.05) and finding.site is None
    late = copying(scene)
    late.copy(PINNED, 19.0, 19.9, SIZE, launched=0.9, returned=0.92)  # an offloaded weight, say: no batch
    (finding,) = CopyOverlap().check(late.bare(tmp_path))
    assert finding.evidence["h2d_bytes"] == SIZE
    assert not list(CopyOverlap().check(copying(scene, copied_ms=0.3).bare(tmp_path)))


def test_a_step_that_waits_for_the_script_gains_nothing(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    loader = made.loader(0.01, 15.0, 15.0, num_workers=4, pin_memory=True)
    loader.tensors = [TensorInfo([256, 3, 128, 128], "float32", "cpu", True, SIZE)]
    made.operator("aten::to", 0.02, 0.08)
    made.copy(PINNED, 0.1, 2.1, SIZE, launched=0.03, returned=0.05)
    for index in range(40):
        start = 2.2 + 0.44 * index
        made.kernel(KERNEL, start + 0.03, start + 0.06, launched=start)
    made.call("Tensor.to", 14, from_device="cpu", to_device="cuda", non_blocking=True, bytes=SIZE)
    assert found(made, tmp_path) is None
