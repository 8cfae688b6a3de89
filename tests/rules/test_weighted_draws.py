"""Draws by weights in a dataset are found in a real run, and their fix comes before workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Edit
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from rules.loader_workers import LoaderWorkers
from rules.slow_transform import SlowTransform
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
words = 50_000
counts = np.random.default_rng(0).random(words) ** 4


class Pairs(Dataset):
    def __init__(self):
        self.pairs = np.random.default_rng(1).integers(0, words, (8000, 2))
        self.p = counts ** 0.75
        self.p /= self.p.sum()

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        noise = np.random.choice(words, size=5, p=self.p)
        return self.pairs[i], noise

    def next(self):
        {later}


table = nn.Embedding(words, 16, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), lr=0.05)
for pair, noise in DataLoader(Pairs(), batch_size=64):
    a, b = table(pair).unbind(1)
    loss = (a * b).sum(-1).sigmoid().mean() - (table(noise) * a[:, None]).sum(-1).sigmoid().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# After each epoch, say: the sums would have to be made anew.
ANNEALS = "self.p = self.p ** 0.99 / (self.p ** 0.99).sum()"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("later", "told"), [("pass", True), (ANNEALS, False)], ids=["the same", "annealed"])
def test_weights_that_are_added_up_for_each_sample(later: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(later=later))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = diagnose(Evidence.from_run(run), rules=[LoaderWorkers(), SlowTransform()]).found
    drawn = [each for each in found if each.finding.parameters.get("kind") == "draw"]
    assert drawn == list(found[:1] if told else ())
    if told:
        fix = drawn[0].fix
        assert drawn[0].finding.site is not None and drawn[0].finding.site.line == 22
        assert isinstance(fix, Edit) and "self.cdf.searchsorted(" in next(iter(fix.texts.values()))
