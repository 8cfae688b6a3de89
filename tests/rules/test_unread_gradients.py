"""Gradients that are asked for and never read are found by running scripts, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.unread_gradients import UnreadGradients
from tests.conftest import PYTHON, QUICK

RULE = UnreadGradients()

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
trunk = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(200, 200), nn.Tanh())])
heads = nn.ModuleList(nn.Linear(200, 1) for _ in range(3))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=1e-3)
weights, kept = list(trunk.parameters()), []
for step in range(200):
    shared = trunk(torch.randn(128, 200))
    losses = [head(shared).square().mean() for head in heads]
    norms = []
    for loss in losses:
        {norm}
    balance = [float(each / sum(norms)) for each in norms]
    optimizer.zero_grad()
    sum(each * loss for each, loss in zip(balance, losses)).backward()
    optimizer.step()
"""
ALL = "gradients = torch.autograd.grad(loss, weights, retain_graph=True); norms.append(gradients[-2].norm())"


def run_of(folder: Path, norm: str) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(norm=norm))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
def test_one_of_ten_gradients_is_read(tmp_path: Path) -> None:
    run = run_of(tmp_path, ALL)
    (line,) = run.record.unread_gradients
    assert (line.site.line, line.asked, line.unread, line.calls) == (15, 10, 9, 3)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert "10 gradients, of which 9 are never read" in finding.summary and finding.gain.likely > 1.2
    assert isinstance(RULE.fix(finding, Sources()), Advice)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "norm",
    [
        "(gradient,) = torch.autograd.grad(loss, weights[-2], retain_graph=True); norms.append(gradient.norm())",
        ALL.replace("gradients[-2].norm()", "sum(each.norm() for each in gradients)"),
        ALL + "; kept[:] = [*kept[-20:], gradients]",
    ],
)
def test_what_is_read_or_kept_is_fine(tmp_path: Path, norm: str) -> None:
    run = run_of(tmp_path, norm)
    assert not run.record.unread_gradients
