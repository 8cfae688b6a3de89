"""Jacobians that are taken backwards are found in a real run, with how many outputs and inputs they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.algebra.jacobians import reverse_jacobians
from advisor.launch import Command, measure
from advisor.rule import Finding
from advisor.run import Run
from rules.jacobian_mode import JacobianMode
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear({inputs}, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, {outputs}))


def state(weights, t):
    return functional_call(net, weights, (t,))


rate = vmap(jacrev(state, argnums=1{more}), in_dims=(None, 0))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(300):
    t = torch.rand(400, {inputs})
    loss = rate(dict(net.named_parameters()), t).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(folder: Path, inputs: int, outputs: int, more: str = "") -> tuple[Evidence, list[Finding]]:
    (folder / "train.py").write_text(SCRIPT.format(inputs=inputs, outputs=outputs, more=more))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(run)
    return evidence, list(JacobianMode().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
def test_one_input_and_eight_outputs_are_found_and_taken_forward(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, 1, 8)
    assert finding.evidence["inputs"] == 1 and finding.evidence["outputs"] == 8
    assert finding.site is not None and finding.site.line == 14 and finding.gain.likely > 1.3
    fix = JacobianMode().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = next(iter(fix.texts.values()))
    assert "vmap(jacfwd(state" in text and "jacrev" not in text
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "train.py").write_text(text)
    command = Command(str(tmp_path / "after" / "train.py"), python=PYTHON, cwd=str(tmp_path / "after"))
    after = measure(command, tmp_path / "run-after", QUICK)
    losses = Run.load(tmp_path / "run").record.losses
    assert losses and after.record.losses[:5] == pytest.approx(losses[:5], rel=1e-3)
    assert reverse_jacobians(Evidence.from_run(after)) == ({}, {})


@pytest.mark.slow
@pytest.mark.sessions
def test_as_many_inputs_are_left_alone(tmp_path: Path) -> None:
    evidence, found = findings(tmp_path, 3, 5, more=", chunk_size=None")
    ((jacobian, times),) = reverse_jacobians(evidence)[0].items()
    assert not found
    assert (jacobian.outputs, jacobian.inputs, times) == (5, 3, 1.0)
