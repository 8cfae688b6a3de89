"""Batches that workers hand over in many small tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.harness.layout import TensorInfo
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.many_tensors import ManyTensors
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graph:
    def __init__(self, nodes):
        self.x, self.y = torch.randn(nodes, 8), torch.randn(1)
        self.edges, self.length = torch.randint(nodes, (2, 3 * nodes)), torch.rand(3 * nodes)


class Graphs(Dataset):
    def __len__(self):
        return 40000

    def __getitem__(self, index):
        return Graph(10 + index % 7)


def join(graphs):
    return torch.cat([each.x for each in graphs]), torch.cat([each.y for each in graphs]), graphs[0].x


net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for item in DataLoader(Graphs(), 32, num_workers=1, collate_fn={collate}):
    x, y, _ = {joined}
    loss = net(x).mean() - y.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("collate", "joined", "tensors"), [("list", "join(item)", 128), ("join", "item", 0)])
def test_the_tensors_of_a_batch_are_counted(collate: str, joined: str, tensors: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(collate=collate, joined=joined))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert [each.batch_tensors for each in run.record.loaders] == [tensors]
    found = list(ManyTensors().check(Evidence.from_run(run)))
    assert len(found) <= (tensors > 0)  # of two cores one may be somebody else's, and making them what it waits for


def told(made: Any, tmp_path: Path, tensors: int = 128, size: int = 600, **facts: Any) -> Finding | None:
    loader = made.loader(**{"wait_ms": 22.0, "fetch_ms": 5.0, "cpu_ms": 3.0, "num_workers": 2, **facts})
    loader.batch_tensors = tensors
    loader.tensors = [TensorInfo([18, 8], "float32", "cpu", False, size)] * 16
    return next(iter(ManyTensors().check(made.evidence(tmp_path))), None)


def test_a_wait_that_making_batches_does_not_explain_is_for_their_tensors(scene: Any, tmp_path: Path) -> None:
    finding = told(scene(60.0), tmp_path)
    assert finding is not None and "as 128 tensors of 600 bytes" in finding.summary
    # Of 22 ms the workers explain 2.5; with the rest as much goes as 0.9 to 1.35 times that.
    gains = [60 / (60 - 19.5 * goes) for goes in (0.9, 1.15, 1.35)]
    assert [finding.gain.low, finding.gain.likely, finding.gain.high] == pytest.approx(gains)


@pytest.mark.parametrize(
    "facts",
    [
        {"tensors": 16},
        {"tensors": 0},
        {"size": 1 << 20},
        {"num_workers": 0},
        {"wait_ms": 3.0},
        {"fetch_ms": 40.0, "cpu_ms": 39.0},
    ],
    ids=["few", "none", "large", "in line", "no wait", "long to make"],
)
def test_other_waits_are_for_others_to_tell(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert told(scene(60.0), tmp_path, **facts) is None
