"""A graph that is stored as a full matrix is found by running a script that has one, and its gain is what it brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Site, SparseProduct
from advisor.launch import Command, measure
from rules.sparse_product import SparseProducts
from tests.conftest import PYTHON, QUICK

RULE = SparseProducts()


def line(**facts: Any) -> SparseProduct:
    """2,200 nodes of 8 edges each, 320 columns, as it was timed."""
    given: dict[str, Any] = {"rows": 2200, "columns": 2200, "numbers": 19360, "calls": 1.0, "turned": 19360.0}
    work = {"multiplied": 2200.0 * 2200 * 320, "needed": 19360.0 * 320}
    times = {"seconds": 14.3e-3, "differentiated_s": 14.3e-3}
    return SparseProduct(Site("model.py", 9), **{**given, **work, **times, **facts})


def findings(scene: Any, tmp_path: Path, *lines: SparseProduct, gpu: str = "") -> list[Any]:
    made = scene(step_ms=60, gpu=gpu)
    made.record.sparse_products = list(lines)
    made.operator("aten::mm", 2, 50)
    return list(RULE.check(made.evidence(tmp_path)))


def test_most_of_the_products_goes(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path, line())
    assert finding.evidence["seconds_saved"] == pytest.approx(26.4e-3, rel=0.05)  # 27.1 were measured
    assert 1.6 < finding.gain.likely < 2.0 and "0.4%" in finding.summary
    assert "to_sparse_csr" in RULE.fix(finding, Sources()).text


def test_one_that_each_step_makes_anew_has_to_be_made_sparse_first(scene: Any, tmp_path: Path) -> None:
    (same,) = findings(scene, tmp_path, line(calls=6.0))
    (anew,) = findings(scene, tmp_path, line(calls=6.0, made=1.0, made_numbers=2200.0 * 2200))
    assert 1.2 < anew.gain.likely < same.gain.likely - 0.1
    assert "another one in each step" in anew.summary and "the same in each step" in same.summary
    assert "keep each sample's edges" in RULE.fix(anew, Sources()).text


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            {
                "numbers": 484_000,
                "turned": 484_000.0,
                "multiplied": 2200.0 * 2200 * 128,
                "needed": 484_000.0 * 128,
                "seconds": 5.8e-3,
                "differentiated_s": 5.8e-3,
            },
            id="a tenth",
        ),
        pytest.param({"seconds": 2e-3, "differentiated_s": 2e-3}, id="of a long step"),
    ],
)
def test_what_would_save_little_is_left_alone(scene: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert not findings(scene, tmp_path, line(**facts))


def test_on_a_gpu_it_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert not findings(scene, tmp_path, line(), gpu="NVIDIA H200")


SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
nodes = 1500
adj = (torch.rand(nodes, nodes) < 0.004).float()
adj = (adj / adj.sum(1, keepdim=True).clamp(min=1)){sparse}


class Layer(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.weight = nn.Linear(before, after)

    def forward(self, h, adj):
        return torch.mm(adj, self.weight(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(nodes, 64)
        self.layers = nn.ModuleList(Layer(64, 64) for _ in range(2))

    def forward(self, rows, adj):
        h = self.embed.weight
        for layer in self.layers:
            h = layer(h, adj).relu()
        return h[rows]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(200):
    loss = model(torch.randint(nodes, (64,)), adj).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("sparse", "told"), [("", True), (".to_sparse_csr()", False)])
def test_a_graph_as_a_full_matrix_is_found(tmp_path: Path, sparse: str, told: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(sparse=sparse))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    if not told:
        assert not run.record.sparse_products
        return
    (seen,) = run.record.sparse_products
    assert "torch.mm" in SCRIPT.splitlines()[seen.site.line - 1] and seen.calls == 2 and seen.differentiated_s > 0
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.gain.likely > 1.5
