"""A 16-bit type is reported where the processor is slower in it, as measured or else by its flags, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.trace import read_trace
from fixtures.expectations import bfloat16_is, cpu_flags
from rules.emulated_precision import EmulatedPrecision
from tests.conftest import PYTHON, QUICK

RULE = EmulatedPrecision()

SCRIPT = """
import torch

USE_AMP = True
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 128)
for step in range(200):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=USE_AMP):
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def found(
    scene: Any,
    folder: Path,
    dtype: str = "c10::BFloat16",
    flags: tuple[str, ...] = ("avx2",),
    product: float | None = None,
    cast_ms: float = 0.0,
) -> Finding | None:
    """What is said of a step of 50 ms that is one product of two matrices of `dtype`, and perhaps a cast to it.

    A product in bfloat16 was measured to take `product` times as long as in float32.
    """
    made = scene(50.0)
    made.operator("aten::mm", 1.0, 49.0 - cast_ms)
    if cast_ms:
        made.operator("aten::copy_", 49.0 - cast_ms, 49.0)
    made.call("autocast", 9, device="cpu", dtype="bfloat16", enabled=True)
    made.record.environment.cpu_flags = list(flags)
    if product is not None:
        made.record.environment.rates = {"bfloat16": {"product": product, "convolution": 1.0}}
    evidence = made.evidence(folder)
    events = json.loads((folder / "trace.json").read_text())
    for event in events["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"].update({"Input Dims": [[512, 512], [512, 512]], "Input type": [dtype, dtype]})
        elif event["name"] == "aten::copy_":
            event["args"].update({"Input Dims": [[512, 512], [512, 512]], "Input type": [dtype, "float"]})
    (folder / "detail.json").write_text(json.dumps(events))
    window: Evidence = replace(evidence, detail=read_trace(str(folder / "detail.json")))
    findings = list(RULE.check(window))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_emulated_products_are_reported_at_their_autocast(scene: Any, tmp_path: Path) -> None:
    finding = found(scene, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 9
    assert finding.gain.likely > 5
    assert finding.evidence["emulated_share_of_flops"] == 1.0


@pytest.mark.parametrize(
    ("dtype", "flags"),
    [
        pytest.param("float", ("avx2",), id="float32"),
        pytest.param("c10::BFloat16", ("avx2", "avx512f", "avx512_bf16"), id="AVX512_BF16"),
        pytest.param("c10::BFloat16", ("avx2", "avx_ne_convert"), id="AVX-NE-CONVERT"),
        pytest.param("c10::BFloat16", ("avx2", "avx512f"), id="AVX-512, through float32"),
        pytest.param("c10::Half", ("avx2", "avx512f", "avx512_fp16"), id="AVX512_FP16"),
        pytest.param("c10::BFloat16", (), id="nothing known of the processor"),
    ],
)
def test_others_are_left(dtype: str, flags: tuple[str, ...], scene: Any, tmp_path: Path) -> None:
    assert found(scene, tmp_path, dtype, flags) is None


def test_what_was_measured_decides_before_the_flags(scene: Any, tmp_path: Path) -> None:
    assert found(scene, tmp_path, flags=("avx2",), product=1.0) is None
    slower = found(scene, tmp_path, flags=("avx2", "avx512f", "avx512_bf16"), product=1.9)
    assert slower is not None and "1.9 times as long" in slower.summary
    assert 1.5 < slower.gain.likely < 1.9
    through_float32 = found(scene, tmp_path, flags=("avx2", "avx512f"), product=5.0)
    assert through_float32 is not None and 3 < through_float32.gain.likely < 5


def test_casts_go_with_the_type(scene: Any, tmp_path: Path) -> None:
    alone, cast = found(scene, tmp_path, product=1.9), found(scene, tmp_path, product=1.9, cast_ms=20.0)
    assert alone is not None and cast is not None
    assert cast.gain.likely > 1.3 * alone.gain.likely


def test_float16_needs_its_own_instructions(scene: Any, tmp_path: Path) -> None:
    finding = found(scene, tmp_path, "c10::Half")
    assert finding is not None and finding.evidence["dtype"] == "float16"


def test_weights_in_16_bits_get_advice(scene: Any, tmp_path: Path) -> None:
    finding = found(scene, tmp_path)
    assert finding is not None
    fix = RULE.fix(replace(finding, parameters={**finding.parameters, "weights": True}), Sources())
    assert isinstance(fix, Advice) and "bfloat16" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_patched_script_is_what_was_predicted(tmp_path: Path) -> None:
    if "slow_bf16" not in bfloat16_is():
        pytest.skip("this processor is not slow in bfloat16")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = Command(script=str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    before = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=240))
    (finding,) = RULE.check(before)
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert "USE_AMP = False" in text
    path.write_text(text)
    after = Evidence.from_run(measure(command, tmp_path / "after", QUICK, timeout=240))
    assert list(RULE.check(after)) == []
    flags = {*cpu_flags()}
    emulates = "avx2" in flags and not {"avx512f", "avx_ne_convert"} & flags
    assert before.step_s and after.step_s and before.step_s > (1.5 if emulates else 1.2) * after.step_s
