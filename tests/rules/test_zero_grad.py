"""What dropping gradients would change for parameters that some steps leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.zero_grad import ZeroGrad

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Finding, Gain, Safety
from tests.rules.test_checks import busy_cpu


@pytest.mark.parametrize(
    ("optimizer", "momentum", "asked_for", "safety"),
    [
        ("SGD", 0.0, False, None),
        ("SGD", 0.9, False, Safety.BEHAVIOUR),
        ("AdamW", None, False, Safety.BEHAVIOUR),
        ("SGD", 0.0, True, Safety.BEHAVIOUR),
    ],
)
def test_exact_only_where_zeros_move_nothing(
    optimizer: str, momentum: float | None, asked_for: bool, safety: Safety | None, scene: Any, tmp_path: Path
) -> None:
    made = busy_cpu(scene, addmm=0.7, zero_=0.12, add_=0.15)
    info = made.record.optimizers[0]
    info.cls, info.momentum, info.zero_filled = optimizer, momentum, 10
    if asked_for:
        made.call("zero_grad", 9, set_to_none=False)
    (finding,) = ZeroGrad().check(made.evidence(tmp_path))
    assert finding.safety is safety


@pytest.mark.parametrize("safety", [None, Safety.BEHAVIOUR])
def test_the_edit_says_what_it_changes(safety: Safety | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("optimizer.zero_grad(set_to_none=False)\n")
    parameters = {"zero_grad": (Site(str(script), 1),)}
    finding = Finding("zero-grad", "", "", Gain(1, 1, 1), {}, parameters=parameters, safety=safety)
    fix = ZeroGrad().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert ("weight decay" in fix.summary) is (safety is not None)


GUARDED = """
for x in xs:
    opt.zero_grad(set_to_none=False)
    loss(x).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.clamp_(-1, 1)
    norms = [p.grad.norm() for p in params if p.grad is not None]
    opt.step()
"""


def test_a_loop_that_asks_for_gradients_first_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GUARDED)
    finding = Finding("zero-grad", "", "", Gain(1, 1, 1), {}, parameters={"zero_grad": (Site(str(script), 3),)})
    fix = ZeroGrad().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert fix.texts[str(script)] == GUARDED.replace("set_to_none=False", "")
