"""Experts' buffers that would hold every token are found by running a script that has them, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.zero_rows import ZeroRows
from tests.conftest import PYTHON, QUICK

RULE = ZeroRows()

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Experts(nn.Module):
    def __init__(self, width=64, experts=8):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, x):
        chosen = self.gate(x)[:, 0].argsort().argsort() * len(self.up) // len(x)  # as many for each
        counts = torch.bincount(chosen, minlength=len(self.up))
        capacity = {capacity}
        place = torch.stack([(chosen[:i] == chosen[i]).sum() for i in range(len(x))])
        buffer = x.new_zeros(len(self.up), capacity, x.shape[-1])
        buffer[chosen, place] = x
        hidden = torch.bmm(buffer, self.up).relu()
        return torch.bmm(hidden, self.down)[chosen, place]


model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(200):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("capacity", "told"), [("len(x)", True), ("int(counts.max())", False)])
def test_places_for_all_tokens_are_mostly_empty(tmp_path: Path, capacity: str, told: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(capacity=capacity))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    if told:
        assert {each.site.line for each in run.record.zero_rows} == {22, 23}
        assert all(each.rows == 8 * 256 and each.zeros == 7 * 256 for each in run.record.zero_rows)
        (finding,) = RULE.check(Evidence.from_run(run))
        fix = RULE.fix(finding, Sources())
        assert isinstance(fix, Advice) and "int(counts.max())" in fix.text
    else:
        assert not list(RULE.check(Evidence.from_run(run)))
