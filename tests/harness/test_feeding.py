"""Which loader feeds the steps, and which only an evaluation beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(36, 64), torch.randn(36, 1))
train, held = DataLoader(data, 4), DataLoader(TensorDataset(torch.randn(8, 64), torch.randn(8, 1)), 4)
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)


def step(x, y, loss):
    optimizer.zero_grad()
    loss(net(x), y).backward()
    optimizer.step()


for epoch in range(400):
    for number, (x, y) in enumerate(train):
        step(x, y, nn.functional.mse_loss)
        {second}
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("second", "feeds"),
    [
        ("step(x, y, nn.functional.l1_loss)", [True]),  # two steps of each batch
        # Two batches of a held-out part beside each second step, without a call of eval().
        ("if number % 2:\n            worse = sum(float(net(a).mean()) for a, _ in held)", [True, False]),
    ],
    ids=["two-steps", "held-out"],
)
def test_a_loader_feeds_the_steps_that_take_its_batches(second: str, feeds: list[bool], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(second=second))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert [each.trains for each in run.record.loaders] == feeds
