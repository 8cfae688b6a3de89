"""What nothing reads is found by running scripts, left out where that is all there is to it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.unread_results import UnreadResults
from tests.conftest import PYTHON, QUICK

RULE = UnreadResults()
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 64))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        z = self.encoder(x)
        again = {decoded}
        return {given}


def spread(x):
    difference = x[:, None] - x
    return difference.norm(dim=-1).mean()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for step in range(600):
    x = torch.randn(256, 64)
    said = {called}
    loss = said.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
FINE = {"decoded": "self.decoder(z)", "given": "self.head(z)", "called": "model(x)", "after": "pass"}
NOT = {"decoded": "None"}


def found(folder: Path, **parts: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(**{**FINE, **parts}))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(RULE.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_branch_that_nothing_reads_is_left_out(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.site is not None and finding.site.line == 17 and finding.gain.likely > 1.1
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert "self.decoder(z)" not in text and "self.decoder = " in text
    (tmp_path / "train.py").write_text(text)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "after", QUICK)
    assert not list(RULE.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_handed_on_gets_advice(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, given="self.head(z), again", called="model(x)[0]")
    assert finding.site is not None and finding.site.line == 17
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "takes again" in fix.why


@pytest.mark.slow
@pytest.mark.sessions
def test_a_function_of_the_script_s_that_nothing_reads_is_not_called(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, **NOT, after="apart = spread(x)")
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit) and "spread(x)\n" not in next(iter(fix.texts.values())).replace("def spread(x)", "")


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        {"given": "self.head(z) + again.mean()"},
        {**NOT, "after": "history.append(spread(x).item())"},
        {**NOT, "after": "history.append(spread(x))"},
        {**NOT, "after": "print(spread(x)) if step % 2 else spread(x)"},
        {**NOT, "after": "assert torch.isfinite(spread(x))"},
        {**NOT, "called": "model(x if step < 2 else x + apart)", "after": "apart = spread(x).detach()"},
    ],
    ids=["in the loss", "a number", "kept", "at times", "a condition", "in the next step"],
)
def test_what_is_read_is_left(parts: dict[str, str], tmp_path: Path) -> None:
    assert not found(tmp_path, **parts)
