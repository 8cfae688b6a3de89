"""A Jacobian of a whole batch is found in a real run, and afterwards each step goes back once for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.algebra.jacobians import looped_jacobians
from advisor.harness.sites import CallSites
from advisor.launch import Command, measure
from advisor.rule import Finding
from advisor.run import Run
from rules.batch_jacobian import BatchJacobian
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.autograd.functional import jacobian

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(3, 48), {layer}, nn.Tanh(), nn.Linear(48, {outputs}))


def divergence(x):
    jac = jacobian(lambda z: net(z), x, create_graph=True)
    {read}


optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(200):
    loss = divergence(torch.randn(40, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(folder: Path, layer: str, read: str) -> tuple[Evidence, list[Finding]]:
    (folder / "train.py").write_text(SCRIPT.format(layer=layer, outputs=3, read=read))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(run)
    return evidence, list(BatchJacobian().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
def test_backwards_for_each_sample_are_found_and_become_one_for_each_output(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, "nn.Identity()", "return jac.diagonal(dim1=0, dim2=2).diagonal().sum(-1)")
    assert finding.evidence["backwards"] == 120 and finding.evidence["samples"] == 40
    assert finding.site is not None and finding.site.line == 11 and finding.gain.likely > 3
    fix = BatchJacobian().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = next(iter(fix.texts.values()))
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "train.py").write_text(text)
    command = Command(str(tmp_path / "after" / "train.py"), python=PYTHON, cwd=str(tmp_path / "after"))
    after = measure(command, tmp_path / "run-after", QUICK)
    losses = Run.load(tmp_path / "run").record.losses
    assert losses and after.record.losses[:5] == pytest.approx(losses[:5], rel=1e-3)
    ((jacobian, times),) = looped_jacobians(Evidence.from_run(after))[0].items()
    assert (jacobian.shape, times) == ((3,), 1.0)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("layer", "read"),
    [
        pytest.param("nn.BatchNorm1d(48)", "return jac.diagonal(dim1=0, dim2=2)", id="samples meet in a batch norm"),
        pytest.param("nn.Softmax(0)", "return jac.diagonal(dim1=0, dim2=2)", id="samples meet in a softmax"),
        pytest.param("nn.Identity()", "return jac.sum((0, 1))", id="other parts are read, too"),
    ],
)
def test_what_samples_have_of_one_another_is_left_alone(layer: str, read: str, tmp_path: Path) -> None:
    _, found = findings(tmp_path, layer, read)
    assert not found


@pytest.mark.parametrize(
    ("function", "meets"),
    [
        (lambda x: x.square(), False),
        (lambda x: torch.stack((x.sin().sum(1), x.prod(1)), 1), False),
        (lambda x: x.softmax(0), True),
        (lambda x: (x - x.mean(0)).sum(1), True),
        (lambda x: x.sum(0), True),  # of no batch
        (lambda x: x * 0, True),  # nothing is known of it
        (lambda x: (x, x), True),  # who knows
    ],
)
def test_whether_samples_meet_is_looked_at(function: Callable[[Tensor], Any], meets: bool) -> None:
    sites = CallSites(torch, 0, SimpleNamespace(gradients_asked=lambda: None))
    sites.on()
    try:
        for _ in range(5):
            torch.autograd.functional.jacobian(function, torch.rand(4, 3))
    finally:
        sites.off()
    (entry,) = [each for each in sites.records() if each.kind == "jacobian"]
    assert entry.details == {"meets": meets} and entry.calls == 5
