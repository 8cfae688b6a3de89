"""A linear recurrence in a Python loop is found in a real run, where it is worth a product."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.linear_recurrence import LinearRecurrence
from tests.conftest import PYTHON, QUICK

RULE = LinearRecurrence()
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(-2.0))
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        s = torch.sigmoid(self.logit)
        state = x[..., 0]
        states = [state]
        for t in range(1, x.shape[-1]):
            {body}
            states.append(state)
        return self.out(torch.stack(states, -1).mean(-1))


model = Smooth()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(150):
    loss = model(torch.randn(8, 16, 200)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def found(folder: Path, body: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(RULE.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_smoothing_frame_by_frame_is_told_of(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "state = (1 - s) * state + s * x[..., t]")
    assert finding.site is not None and finding.site.line == 18 and finding.gain.likely > 2
    assert finding.evidence["numbers_per_state"] == 128
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "a = 1 - s" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_a_state_that_is_bent_in_between_is_not(tmp_path: Path) -> None:
    assert not found(tmp_path, "state = torch.tanh((1 - s) * state + s * x[..., t])")
