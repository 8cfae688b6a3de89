"""What is computed for each sample and is the same for all of them, in real runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.evidence import Evidence
from advisor.harness.watches.same_rows import SameRows as Watch
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.same_rows import SameRows
from tests.conftest import PYTHON, QUICK

FILTER = """\
import torch
from torch import nn

torch.manual_seed(0)
size, batch, steps = 24, 96, 12


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.move = nn.Parameter(0.9 * torch.eye(size) + 0.02 * torch.randn(size, size))
        self.noise = nn.Parameter(torch.full((size,), -1.0))

    def forward(self, seen):
        x = seen.new_zeros(len(seen), size)
        P = {start}
        Q, loss = torch.diag(self.noise.exp()), 0.0
        for t in range(steps):
            x = x @ self.move.mT
            P = self.move @ P @ self.move.mT + Q
            gain = torch.cholesky_solve(P.mT, torch.linalg.cholesky(P + torch.eye(size))).mT
            error = seen[:, t] - x
            x = x + (gain @ error[..., None])[..., 0]
            loss = loss + error.square().mean()
        return loss


model = Filter()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(400):
    loss = model(torch.randn(batch, steps, size))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(folder: Path, start: str) -> list[Finding]:
    (folder / "train.py").write_text(FILTER.format(start=start))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(SameRows().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("torch.eye(size).expand(batch, -1, -1)", True),
        ("torch.eye(size)", False),
        ("torch.eye(size) * (1 + torch.rand(batch, 1, 1))", False),  # each has its own
    ],
    ids=["expanded", "once", "own"],
)
def test_a_covariance_that_is_the_same_for_all_of_a_batch(start: str, told: bool, tmp_path: Path) -> None:
    found = findings(tmp_path, start)
    assert len(found) == told
    for each in found:
        assert each.evidence["rows"] == 96 and each.gain.likely > 1.3
        assert each.site is not None and each.site.line in (20, 21)


def test_rows_that_the_data_has_are_nobodys_mistake(tmp_path: Path) -> None:
    script = FILTER.format(start="torch.eye(size).expand(batch, -1, -1)")
    (tmp_path / "train.py").write_text(script.replace("torch.randn(batch", "torch.ones(batch"))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert not run.record.same_rows


def alike(tensor: torch.Tensor) -> bool:
    return Watch(torch)._alike(tensor)


def test_rows_are_the_same_to_the_last_digit_and_no_view_of_one() -> None:
    row = torch.rand(1, 6, 5)
    same = row.repeat(16, 1, 1)
    assert alike(same) and alike(same.mT) and alike(same[:, 0])
    other = same.clone()
    other[7, 3, 2] += 1e-6
    assert not alike(other)  # neither the first nor the last number of a row
    assert not alike(row.expand(16, -1, -1))  # takes no time
    assert not alike(torch.zeros(16, 5))  # a first state
    assert not alike(same[:4]) and not alike(torch.ones(16)) and not alike(torch.ones(16, 5, dtype=torch.long))
