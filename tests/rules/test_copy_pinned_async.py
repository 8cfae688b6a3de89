"""Batches that cannot be pinned are not; what else a step copies stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.copy_pinned_async import CopyPinnedAsync

from advisor.edit import Sources
from advisor.evidence import Change
from advisor.harness.layout import TensorInfo
from advisor.rule import Advice
from tests.rules.test_checks import TENSOR_CORE, copying, found
from tests.rules.test_copy_narrow_dtype import waiting


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_batches_partly_on_the_gpu_are_not_pinned(device: str, scene: Any, tmp_path: Path) -> None:
    made = copying(scene)
    made.record.loaders[0].tensors.append(TensorInfo([64], "int64", device, False, 512))
    (finding,) = CopyPinnedAsync().check(made.evidence(tmp_path))
    assert bool(finding.unmet) is (device != "cpu")
    if finding.unmet:
        fix = CopyPinnedAsync().fix(finding, Sources())
        assert isinstance(fix, Advice) and "cuda:0" in fix.why


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def uploading(scene: Any, size: int, operator: str = "aten::to") -> Any:
    """The batch's copy, and ten times the forward uploads `size` bytes besides, and waits for them."""
    made = copying(scene)
    del made._events[-6:]  # the kernel that fills the rest of each step
    for index in range(10):
        at = 9.2 + index
        made.kernel(TENSOR_CORE, at + 0.01, at + 0.5, launched=at)
        made.operator(operator, at + 0.02, at + 0.53)
        made.copy(PAGEABLE, at + 0.501, at + 0.502, size, launched=at + 0.03, returned=at + 0.035)
        made.each("cuda_runtime", "cudaStreamSynchronize", at + 0.037, at + 0.52)
    return made


@pytest.mark.parametrize(
    ("size", "operator", "batch"),
    [
        pytest.param(40, "aten::to", 1.0, id="told-by-their-bytes"),
        pytest.param(40, "aten::to", 1.25, id="batches-of-any-size"),
        pytest.param(64 * 3 * 224 * 224 * 4, "aten::index", 1.0, id="an-index-of-as-many-bytes"),
    ],
)
def test_uploads_of_the_forward_are_not_promised(
    size: int, operator: str, batch: float, scene: Any, tmp_path: Path
) -> None:
    made = uploading(scene, size, operator)
    tensor, site = made.record.loaders[0].tensors[0], made.record.call_sites[-1]
    tensor.bytes = site.details["bytes"] = int(tensor.bytes * batch)
    finding = found(made, tmp_path, "copy-pinned-async")
    # 8.5 ms of copying become 1.75; the host, which no longer waits for it, waits at the first upload.
    assert finding is not None and finding.gain.likely == pytest.approx(20 / (20 - 6.75), rel=0.03)
    everything = made.evidence(tmp_path).what_if(Change(copies_async=True, h2d_scale=1.75 / 8.5))
    assert everything.speedup[1] > 1.1 * finding.gain.likely


def test_a_busy_gpu_is_what_the_host_waits_for(scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, 3.0), tmp_path, "copy-pinned-async")
    assert finding is not None
    assert finding.summary.endswith("blocked for 9.75 ms, 6.70 ms of it until the GPU gets to the copies.")
    assert finding.evidence["h2d_blocking_s"] == pytest.approx(9.75e-3)
    assert finding.evidence["h2d_waiting_s"] == pytest.approx(6.7e-3, rel=0.02)
    alone = found(copying(scene), tmp_path, "copy-pinned-async")
    assert alone is not None and alone.summary.endswith("the host is blocked for 8.80 ms.")


@pytest.mark.parametrize(
    ("capability", "left_ms"),
    [
        pytest.param([7, 0], 38.5 / 12, id="pcie-3"),
        pytest.param([8, 0], 38.5 / 22, id="pcie-4"),
        pytest.param([9, 0], 0.15 * 8.5, id="pcie-5-no-less-than-so-much"),
    ],
)
def test_pinned_copies_are_as_fast_as_the_bus(
    capability: list[int], left_ms: float, scene: Any, tmp_path: Path
) -> None:
    made = uploading(scene, 40)
    made.record.device.capability = capability
    finding = found(made, tmp_path, "copy-pinned-async")
    assert finding is not None and finding.gain.likely == pytest.approx(20 / (20 - 8.5 + left_ms), rel=0.03)


def test_the_run_s_own_pinned_copies_say_how_fast_the_bus_is(scene: Any, tmp_path: Path) -> None:
    made = uploading(scene, 40)
    made.copy("Memcpy HtoD (Pinned -> Device)", 19.6, 19.8, 2_500_000, launched=19.55, returned=19.56, stream=9)
    finding = found(made, tmp_path, "copy-pinned-async")
    assert finding is not None and finding.gain.likely == pytest.approx(20 / (20 - 8.5 + 38.5 / 12.5), rel=0.03)
