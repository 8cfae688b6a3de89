"""Layers on rows that were looked up are found by running scripts that have them, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.gathered_rows import GatheredRows
from tests.conftest import PYTHON, QUICK

RULE = GatheredRows()

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Messages(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.edge = nn.Linear(2 * width + 3, width)
        self.out = nn.Linear(width, 1)

    def forward(self, h, source, target, edge):
        {message}
        return self.out(torch.zeros_like(h).index_add(0, target, message))


model = Messages()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
source, target = torch.randint(300, (2, 4000))
edge = torch.randn(4000, 3)
for step in range(300):
    h = torch.randn(300, 96)
    loss = model(h, source, target, edge).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run_of(folder: Path, message: str) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(message=message))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_message_per_edge_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path, "message = self.phi(h[source])")
    (line,) = run.record.gathered
    assert line.site.line == 16 and (line.calls, line.linear) == (3, 2)
    assert (line.rows, line.distinct) == (4000, 300)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert "4,000 rows, of which only 300 differ" in finding.summary
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "layers(h)[index]" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_a_layer_on_joined_columns_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path, "message = self.edge(torch.cat([h[source], h[target], edge], -1))")
    (line,) = run.record.gathered
    assert line.joined and line.linear == 1
    (finding,) = RULE.check(Evidence.from_run(run))
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "Split the layer at train.py:16" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_a_message_per_node_is_fine(tmp_path: Path) -> None:
    run = run_of(tmp_path, "message = self.phi(h)[source]")
    assert not run.record.gathered and not list(RULE.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_layer_of_all_blocks_cannot_go_before_the_lookup(tmp_path: Path) -> None:
    """Bytes of a text, of which there are 256: the first block's projection is given rows of the embedding."""
    blocks = "message = h[source]\n        for _ in range(3):\n            message = self.phi(message) * edge[:, :1]"
    run = run_of(tmp_path, blocks)
    (line,) = run.record.gathered
    assert (line.site.line, line.linear, line.others) == (18, 2, 4)
    assert not list(RULE.check(Evidence.from_run(run)))
