"""Gradients by several inputs are found in a real run, and one call gives them afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.gradients.separate_gradients import separate_gradients
from advisor.evidence.worked import of_tensors, spent_s
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.run import Run
from rules.separate_gradients import SeparateGradients
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def gradient(u, x):
    return torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), create_graph=True)[0]


def residual(x, y, t):
    u = net(torch.cat([x, y, t], 1))
    {body}


optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(150):
    x, y, t = (torch.rand(400, 1).requires_grad_() for _ in range(3))
    loss = residual(x, y, t).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""  # noqa: E501
APART = "u_x = gradient(u, x)\n    u_y = gradient(u, y)\n    u_t = gradient(u, t)\n    return u_t + u * u_x + u * u_y"
WEIGHTED = "return sum(torch.autograd.grad(u, x, torch.randn_like(u), create_graph=True)[0] for _ in range(3))"
AGAIN = "return gradient(u, x) + u * gradient(u, x) + gradient(gradient(u, x), x)"
OF_EACH = (
    "def slopes(f):\n        f_x = gradient(f, x)\n        f_t = gradient(f, t)\n        return f_x + f_t\n"
    "    return slopes(u) + slopes(u.sin()) * slopes(u.cos())"
)
OTHERS = "u_x = gradient(u, x)\n    v = u * u_x\n    return gradient(v, y) + gradient(u_x, x)"


def findings(folder: Path, body: str) -> tuple[Evidence, list[Finding]]:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(run)
    return evidence, list(SeparateGradients().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
def test_three_calls_for_one_thing_become_one(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, APART)
    assert finding.evidence["calls_per_step"] == 3 and finding.evidence["needed_per_step"] == 1
    assert finding.site is not None and finding.site.line == 15 and 1.2 < finding.gain.likely < 3
    fix = SeparateGradients().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = next(iter(fix.texts.values()))
    assert (
        "u_x, u_y, u_t = torch.autograd.grad(u, (x, y, t), grad_outputs=torch.ones_like(u), create_graph=True)" in text
    )
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "train.py").write_text(text)
    command = Command(str(tmp_path / "after" / "train.py"), python=PYTHON, cwd=str(tmp_path / "after"))
    after = measure(command, tmp_path / "run-after", QUICK)
    losses = Run.load(tmp_path / "run").record.losses
    assert losses and after.record.losses[:5] == pytest.approx(losses[:5], rel=1e-3)
    assert separate_gradients(Evidence.from_run(after)) is None


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_written_once_counts_as_often_as_it_is_called(tmp_path: Path) -> None:
    evidence, (finding,) = findings(tmp_path, OF_EACH)
    seen = separate_gradients(evidence)
    assert seen is not None and (seen.calls, seen.groups) == (6, 3)
    again = spent_s(evidence, of_tensors(seen.shares)) / (evidence.trace_step_s or 1.0)
    assert finding.evidence["again_share"] == pytest.approx(again)


@pytest.mark.slow
@pytest.mark.sessions
def test_gradients_of_different_things_are_left_alone(tmp_path: Path) -> None:
    evidence, found = findings(tmp_path, OTHERS)
    assert separate_gradients(evidence) is None and not found


@pytest.mark.slow
@pytest.mark.sessions
def test_the_same_thing_weighted_in_other_ways_is_left_alone(tmp_path: Path) -> None:
    evidence, found = findings(tmp_path, WEIGHTED)
    assert separate_gradients(evidence) is not None and not found


@pytest.mark.slow
@pytest.mark.sessions
def test_what_was_given_before_is_asked_for_again(tmp_path: Path) -> None:
    evidence, (finding,) = findings(tmp_path, AGAIN)
    assert evidence.record is not None and evidence.record.asked_again is not None
    assert evidence.record.asked_again.before == [-1, 0, 0, -1]
    assert finding.evidence["asked_again_per_step"] == 2 and finding.evidence["calls_per_step"] == 4
    assert finding.site is not None and finding.site.line == 10 and "called at train.py:15" in finding.summary
    fix = SeparateGradients().fix(finding, Sources())
    assert isinstance(fix, Advice) and "until the step is over" in fix.text
