"""Values that a GradScaler reads: told of where the optimizer can spare it that, and nobody's to remove elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.host_sync import HostSync

from advisor.edit import Sources
from advisor.rule import Advice
from tests.rules.test_checks import A100, ELEMENTWISE, TENSOR_CORE, found


def reading(scene: Any, optimizer: str, *lines: int) -> Any:
    """Steps that wait for a value; a GradScaler reads it, and the script at these lines."""
    made = scene(20.0, A100)
    made.record.optimizers[0].cls = optimizer
    made.kernel(TENSOR_CORE, 0.5, 10.0, launched=0.1)
    made.operator("aten::item", 1.0, 10.2)
    made.each("cuda_runtime", "cudaStreamSynchronize", 1.1, 10.1)
    for index in range(40):
        start = 10.5 + 0.2 * index
        made.kernel(ELEMENTWISE, start + 0.03, start + 0.12, launched=start)
    made.call("Tensor.item", 17, device="cuda", inside="torch.amp.grad_scaler")
    for line in lines:
        made.call("Tensor.item", line, device="cuda")
    return made


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_an_optimizer_can_be_fused_and_then_the_scaler_need_not_read(
    optimizer: str, scene: Any, tmp_path: Path
) -> None:
    finding = found(reading(scene, optimizer), tmp_path, "host-sync")
    assert finding is not None
    fix = HostSync().fix(finding, Sources())
    assert isinstance(fix, Advice) and fix.text.startswith("At train.py:17 pass fused=True to the optimizer")


def test_what_a_scaler_reads_for_another_optimizer_stays(scene: Any, tmp_path: Path) -> None:
    assert found(reading(scene, "RMSprop"), tmp_path, "host-sync") is None
    finding = found(reading(scene, "RMSprop", 14), tmp_path, "host-sync")
    assert finding is not None and "train.py:14" in finding.summary and "train.py:17" not in finding.summary
    assert "GradScaler" in finding.gain.basis
    assert finding.parameters["inside"] == {}
    fix = HostSync().fix(finding, Sources({"/nowhere/train.py": "\n" * 13 + "losses.append(loss.item())\n"}))
    assert isinstance(fix, Advice) and "train.py:14" in fix.text and "train.py:17" not in fix.text


@pytest.mark.parametrize(("reads", "reported"), [(100, True), (10, False)])
def test_reading_costs_the_host_something_where_nothing_waits(
    reads: int, reported: bool, scene: Any, tmp_path: Path
) -> None:
    """185 values a step, each there already when it is read: 10 us of the host, which makes the step, for each."""
    made = scene(20.0, A100)
    for number in range(reads):
        start = 0.18 * number
        made.kernel(ELEMENTWISE, start + 0.02, start + 0.022, launched=start + 0.01)
        made.operator("aten::item", start + 0.1, start + 0.115)
        made.copy("Memcpy DtoH (Device -> Pageable)", start + 0.104, start + 0.105, 4, launched=start + 0.101,
                  returned=start + 0.106)  # fmt: skip
        made.each("cuda_runtime", "cudaStreamSynchronize", start + 0.107, start + 0.11)
    made.call("Tensor.item", 14, per_step=float(reads), device="cuda")
    finding = found(made, tmp_path, "host-sync")
    assert (finding is not None) is reported
    if finding is not None:
        # 100 reads of 9.7 us, of which their synchronizations are a part.
        assert finding.gain.likely == pytest.approx(20 / (20 - 0.97), rel=0.006)
        assert "reading takes the host 1.0 ms" in finding.summary
