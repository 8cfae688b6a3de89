"""A backward that goes on to what comes into a frozen model is told of, where nobody reads what it finds there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.input_gradients import InputGradients
from tests.conftest import PYTHON, QUICK

RULE = InputGradients()
ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def goes_on(made: Any, text: str, folder: Path) -> Any:
    """Three gradients in each backward, of which the last is of no weight: from 40 to 90 of 100 ms."""
    script = folder / "train.py"
    script.write_text(text)
    record = made.record
    record.script, record.modules = str(script), {str(script): "train"}
    record.gradients, record.gradients_needed, record.input_gradients = 3, 2, 1
    for start in (30.0, 39.0, 89.0):
        made.operator(ACCUMULATES, start, start + 1.0)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_what_the_backward_does_after_the_last_weight_goes(scene: Any, tmp_path: Path) -> None:
    finding = found(goes_on(scene(100.0), "x = 1\nencoder.enable_input_require_grads()\n", tmp_path), tmp_path)
    assert finding is not None and 100.0 / finding.gain.likely == pytest.approx(50.0, rel=0.02)
    assert finding.site is not None and finding.site.line == 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x.requires_grad_()\nstep = x.grad.sign()\n", id="an attack"),
        pytest.param("x.requires_grad_()\nseen = getattr(x, 'grad')\n", id="by its name"),
    ],
)
def test_where_it_is_read_nothing_is_told(text: str, scene: Any, tmp_path: Path) -> None:
    assert found(goes_on(scene(100.0), text, tmp_path), tmp_path) is None


@pytest.mark.parametrize("text", ["x.grad = None\n", "optimizer.zero_grad()\n", "y = torch.autograd.grad(u, x)\n"])
def test_what_reads_none_is_no_matter(text: str, scene: Any, tmp_path: Path) -> None:
    assert found(goes_on(scene(100.0), f"x.requires_grad_()\n{text}", tmp_path), tmp_path) is not None


def test_a_script_that_differentiates_by_its_inputs_goes_on_doing_so(scene: Any, tmp_path: Path) -> None:
    made = goes_on(scene(100.0), "x.requires_grad_()\ny = torch.autograd.grad(u, x)\n", tmp_path)
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "backward(inputs=" in fix.text


def test_weights_that_nobody_trains_are_another_rule_s(scene: Any, tmp_path: Path) -> None:
    made = goes_on(scene(100.0), "x.requires_grad_()\n", tmp_path)
    made.record.unused_gradients = [object()]
    assert found(made, tmp_path) is None


SCRIPT = """\
import torch
from torch import nn

body = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))
body.requires_grad_(False)
head = nn.Linear(256, 4)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(400):
    x = torch.randn(512, 256)
    {asks}
    loss = head(body(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    {more}
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("asks", "more", "line"),
    [
        ("x.requires_grad_()", "pass", 10),
        ("x.requires_grad_(False)", "pass", None),
        ("x.requires_grad_()", "seen = x.grad.norm()", None),
    ],
    ids=["asked for", "not asked for", "read"],
)
def test_a_script_s_own_backward(asks: str, more: str, line: int | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(asks=asks, more=more))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    told = [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == RULE.id]
    assert [each.line for each in told] == ([line] if line else [])
    assert all(each.fix.kind == "edit" and "-    x.requires_grad_()" in each.fix.diff for each in told)
