"""Attention whose products could be made the other way is found in real runs, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.linear_attention import LinearAttention
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
mask = torch.ones({queries}, {queries}).tril()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 48), nn.Linear(16, 1)

    def attend(self, q, k, v):
        {body}

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        return self.out(self.attend(F.elu(q) + 1, F.elu(k) + 1, v))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(300):
    loss = net(torch.randn(2, {queries}, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DIVIDED = "scores = q @ k.mT\nscores = scores / (scores.sum(-1, keepdim=True) + 1e-6)\nreturn scores @ v"


def findings(folder: Path, body: str, queries: int = 320) -> list[Finding]:
    text = SCRIPT.format(body=body.replace("\n", "\n        "), queries=queries)
    (folder / "train.py").write_text(text)
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(LinearAttention().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "body",
    [
        DIVIDED,
        "scores = 0.5 * torch.matmul(q, k.transpose(-2, -1))\ntotal = scores.sum(dim=2, keepdim=True).clamp_min(1e-6)\n"
        "return torch.bmm(scores.div(total), v)",
    ],
)
def test_scores_that_are_only_divided_are_found(body: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, body)
    assert finding.site is not None and finding.site.line == 18 and finding.gain.likely > 1.5
    assert (finding.evidence["queries"], finding.evidence["width"]) == (320, 16)
    fix = LinearAttention().fix(finding, Sources())
    assert isinstance(fix, Advice) and "q @ (k.mT @ v)" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("body", "queries"),
    [
        pytest.param("return (q @ k.mT).softmax(-1) @ v", 320, id="softmax"),
        pytest.param(DIVIDED.replace("k.mT\n", "k.mT * mask\n"), 320, id="each query has keys of its own"),
        pytest.param("return q @ (k.mT @ v) / (q @ k.sum(1).unsqueeze(-1))", 320, id="the other way"),
        pytest.param(DIVIDED, 12, id="few keys"),
        pytest.param(DIVIDED.replace("sum(-1, keepdim=True)", "sum(1, keepdim=True)"), 320, id="over the queries"),
    ],
)
def test_other_attention_is_not(body: str, queries: int, tmp_path: Path) -> None:
    assert findings(tmp_path, body, queries) == []


def test_both_ways_are_the_same() -> None:
    q, k, v = (torch.rand(2, 3, 20, 4, dtype=torch.float64) for _ in range(3))
    scores = q @ k.mT
    after = q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1))
    torch.testing.assert_close(after, scores / scores.sum(-1, keepdim=True) @ v)
