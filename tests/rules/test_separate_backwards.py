"""Losses that go back one after the other through what they share are found by running scripts that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.gradients.backwards import shared_backward
from advisor.launch import Command, measure
from rules.separate_backwards import SeparateBackwards
from tests.conftest import PYTHON, QUICK

RULE = SeparateBackwards()

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
trunk = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
age, height = nn.Linear(256, 1), nn.Linear(256, 1)
parameters = [*trunk.parameters(), *age.parameters(), *height.parameters()]
optimizer = torch.optim.SGD(parameters, lr=1e-4)
for step in range(400):
    x, a, h = torch.randn(256, 64), torch.randn(256, 1), torch.randn(256, 1)
    optimizer.zero_grad()
{body}
    optimizer.step()
"""
SEPARATE = """\
    features = trunk(x)
    loss_a = F.mse_loss(age(features), a)
    loss_a.backward(retain_graph=True)
    loss_h = F.l1_loss(height(features), h)
    loss_h.backward()
"""
TOGETHER = """\
    features = trunk(x)
    (F.mse_loss(age(features), a) + F.l1_loss(height(features), h)).backward()
"""
GRAPHS_OF_THEIR_OWN = """\
    F.mse_loss(age(trunk(x)), a).backward()
    F.l1_loss(height(trunk(x)), h).backward()
"""
STEPS_BETWEEN = """\
    features = trunk(x)
    loss_a = F.mse_loss(age(features), a)
    loss_h = F.l1_loss(height(features), h)
    loss_a.backward(retain_graph=True)
    optimizer.zero_grad()
    loss_h.backward()
"""
RUNNING = """\
    running = 0.0
    for part in x.chunk(2):
        running = running + age(trunk(part)).square().mean()
        running.backward(retain_graph=True)
"""
LOOKED_AT = SEPARATE.replace("    loss_h =", "    norm = trunk[0].weight.grad.norm()\n    loss_h =")


def run_of(tmp_path: Path, body: str) -> Evidence:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body.rstrip("\n")))
    return Evidence.from_run(measure(Command(str(script), python=PYTHON), tmp_path / "run", QUICK))


@pytest.mark.sessions  # of shares that are times
def test_two_losses_go_back_through_one_trunk(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, SEPARATE)
    shared = shared_backward(evidence)
    assert shared is not None and shared.backwards == 2
    # Half of what the trunk's backwards take, the heads aside: not more than half of all of them.
    backward = evidence.breakdown.mean_s("backward")
    assert 0.25 * backward < shared.seconds < 0.55 * backward
    (finding,) = RULE.check(evidence)
    assert finding.gain.likely > 1.1
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert "(loss_a + loss_h).backward()" in text and "retain_graph" not in text


@pytest.mark.parametrize(
    "body",
    [TOGETHER, GRAPHS_OF_THEIR_OWN, STEPS_BETWEEN, RUNNING],
    ids=["one backward", "graphs of their own", "gradients are dropped between", "a running sum"],
)
def test_what_goes_back_once(tmp_path: Path, body: str) -> None:
    evidence = run_of(tmp_path, body)
    assert shared_backward(evidence) is None
    assert not list(RULE.check(evidence))


def test_a_backward_through_a_graph_of_its_own_is_none_of_them(tmp_path: Path) -> None:
    first = "    drift = F.mse_loss(height(trunk(x[:8])), h[:8])\n    drift.backward()\n"
    evidence = run_of(tmp_path, first + SEPARATE)
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line == 18  # loss_a's, below that of line 15
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert "(loss_a + loss_h).backward()" in text and "drift.backward()" in text


def test_gradients_that_are_looked_at(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, LOOKED_AT)
    assert shared_backward(evidence) is not None
    assert not list(RULE.check(evidence))
