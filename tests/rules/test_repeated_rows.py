"""Rows that a module computes again are found by running scripts that have them, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import OptimizerInfo, RepeatedRow, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.gathered_rows import GatheredRows
from rules.repeated_rows import RepeatedRows
from tests.conftest import PYTHON, QUICK

RULE = RepeatedRows()

QUESTIONS = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Ranker(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(500, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout={dropout}, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def encode(self, ids):
        return self.encoder(self.words(ids)).mean(1)

    def forward(self, questions, answers):
        batch, several, length = answers.shape
        {encoded}
        scores = (encoded * self.encode(answers.reshape(batch * several, length))).sum(-1)
        return scores.view(batch, several)


model = Ranker()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    questions, answers = torch.randint(500, (8, 12)), torch.randint(500, (8, 4, 12))
    loss = F.cross_entropy(model(questions, answers), torch.zeros(8, dtype=torch.int64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
REPEATED = "encoded = self.encode(questions.unsqueeze(1).expand(-1, several, -1).reshape(batch * several, -1))"
ONCE = "encoded = self.encode(questions).repeat_interleave(several, 0)"

TRIPLETS = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv1d(1, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 7), nn.ReLU(), nn.Flatten(), nn.Linear(832, 16))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(4800, 1, 64), torch.randint(4, (4800,))), batch_size=16)
for epoch in range(3):
    for x, y in loader:
        i, j, k = torch.randint(16, (3, 64))
        {embedded}
        loss = F.triplet_margin_loss(a, p, n)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def run_of(folder: Path, script: str) -> Run:
    (folder / "train.py").write_text(script)
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_question_beside_each_of_its_answers_is_found(tmp_path: Path, dropout: float) -> None:
    run = run_of(tmp_path, QUESTIONS.format(dropout=dropout, encoded=REPEATED))
    (line,) = run.record.repeated_rows
    assert (line.site.line, line.calls, line.order, line.rows, line.distinct) == (17, 1, "block", 32, 8)
    assert line.differentiated_s == pytest.approx(line.seconds) and line.dropout == bool(dropout)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert "TransformerEncoder at train.py:17" in finding.summary and "each of 8 several times" in finding.summary
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "before they are repeated" in fix.text
    assert ("Dropout is on" in fix.text) == bool(dropout)
    assert not list(GatheredRows().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_questions_that_are_encoded_once_are_fine(tmp_path: Path) -> None:
    run = run_of(tmp_path, QUESTIONS.format(dropout=0.1, encoded=ONCE))
    assert not run.record.repeated_rows


@pytest.mark.slow
@pytest.mark.sessions
def test_triplets_of_a_batch_are_found(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRIPLETS.format(embedded="a, p, n = net(x[i]), net(x[j]), net(x[k])"))
    lines = sorted(run.record.repeated_rows, key=lambda each: each.site.column or 0)
    assert {(each.site.line, each.calls) for each in lines} == {(14, 1.0)} and len(lines) == 3
    assert [each.order for each in lines] == ["", "calls", "calls"]
    (finding,) = RULE.check(Evidence.from_run(run))
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "once, with all rows of the batch" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_triplets_of_embeddings_are_fine(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRIPLETS.format(embedded="z = net(x); a, p, n = z[i], z[j], z[k]"))
    assert not run.record.repeated_rows


@pytest.mark.parametrize(("dropout", "steps", "told"), [(True, 20, True), (True, 0, False), (False, 0, True)])
def test_rows_that_dropout_tells_apart_are_meant_in_an_inference(
    dropout: bool, steps: int, told: bool, scene: Any, tmp_path: Path
) -> None:
    made = scene(10.0)
    made.operator("aten::conv2d", 0.1, 9.9)
    made.record.optimizers = [OptimizerInfo(cls="SGD", steps=steps)]
    row = RepeatedRow(Site("/nowhere/frames.py", 8), module="Sequential", order="tile", rows=12, distinct=1)
    row.dropout, row.calls, row.seconds = dropout, 1.0, 4e-3
    made.record.repeated_rows = [row]
    assert bool(list(RULE.check(made.evidence(tmp_path)))) is told
