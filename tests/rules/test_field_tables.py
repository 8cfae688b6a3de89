"""Tables of one width that a loop looks up one after another are found in real runs, and only where one could do."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.edit.sources import text_of
from advisor.evidence import Evidence
from advisor.evidence.python_loops.field_tables import field_tables
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.python_loop_over_modules import PythonLoopOverModules
from tests.conftest import PYTHON, QUICK

RULE = PythonLoopOverModules()

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SIZES = [20 + 9 * i for i in range(16)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 8) for size in SIZES])
        self.uneven = nn.ModuleList([nn.Embedding(size, 4 + i) for i, size in enumerate(SIZES)])
        self.bags = nn.ModuleList([nn.EmbeddingBag(size, 8, mode="sum") for size in SIZES])
        self.mixes = nn.ModuleList([nn.Linear(8, 8) for _ in SIZES])
        self.one = nn.Embedding(max(SIZES), 8)
        self.out = nn.LazyLinear(1)

    def forward(self, x):
        {body}
        return self.out(torch.cat(rows, 1))


net = Net()
x = torch.stack([torch.randint(0, size, (20000,)) for size in SIZES], 1)
starts = torch.arange(0, 64, 2)
net(x[:64])
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(300):
    at = 64 * (step % 300)
    loss = net(x[at : at + 64]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def evidence_of(folder: Path, body: str) -> Evidence:
    (folder / "train.py").write_text(SCRIPT.format(body=body.replace("\n", "\n        ")))
    command = Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder))
    return Evidence.from_run(measure(command, folder / "run", QUICK))


def of_tables(evidence: Evidence) -> list[Finding]:
    return [each for each in RULE.check(evidence) if each.parameters["kind"] in ("tables", "bags")]


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        pytest.param(
            "rows = [table(x[:, i]) for i, table in enumerate(self.tables)]", 20, "nn.Embedding(sum(sizes)", id="tables"
        ),
        pytest.param(
            "rows = []\nfor i in range(16):\n    rows.append(self.bags[i](x[:, i], starts))",
            21,
            "nn.EmbeddingBag(sum(sizes)",
            id="bags",
        ),
    ],
)
def test_tables_of_different_lengths_are_found(body: str, line: int, told: str, tmp_path: Path) -> None:
    (finding,) = of_tables(evidence_of(tmp_path, body))
    assert finding.site is not None and finding.site.line == line
    assert finding.evidence["modules"] == 16 and finding.gain.likely > 1.1
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and told in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("rows = [table(x[:, i]) for i, table in enumerate(self.tables[:5])]", id="few"),
        pytest.param("rows = [table(x[:, i]) for i, table in enumerate(self.uneven)]", id="of different widths"),
        pytest.param(
            "rows = [mix(table(x[:, i])) for i, (table, mix) in enumerate(zip(self.tables, self.mixes))]",
            id="each goes through a layer",
        ),
        pytest.param("rows = [self.one(x[:, i] % 20) for i in range(16)]", id="one table"),
    ],
)
def test_what_one_lookup_could_not_do_is_left_alone(body: str, tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, body)
    assert evidence.calls is not None  # the lookups are seen, and told apart
    assert field_tables(evidence, text_of) is None and of_tables(evidence) == []
