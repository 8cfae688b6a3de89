"""Batches that cannot be pinned are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.copy_pinned_async import CopyPinnedAsync

from advisor.edit import Sources
from advisor.harness.layout import TensorInfo
from advisor.rule import Advice
from tests.rules.test_checks import copying


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_batches_partly_on_the_gpu_are_not_pinned(device: str, scene: Any, tmp_path: Path) -> None:
    made = copying(scene)
    made.record.loaders[0].tensors.append(TensorInfo([64], "int64", device, False, 512))
    (finding,) = CopyPinnedAsync().check(made.evidence(tmp_path))
    assert bool(finding.unmet) is (device != "cpu")
    if finding.unmet:
        fix = CopyPinnedAsync().fix(finding, Sources())
        assert isinstance(fix, Advice) and "cuda:0" in fix.why
