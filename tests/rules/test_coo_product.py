"""Products with sparse matrices in COO are found by running scripts that have them, and none in what is advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.evidence.algebra.coo_products import coo_products
from advisor.launch import Command, measure
from rules.coo_product import CooProduct
from tests.conftest import PYTHON, QUICK

RULE = CooProduct()
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
nodes = 4000
indices = torch.randint(nodes, (2, 60000))
adj = torch.sparse_coo_tensor(indices, torch.rand(60000), (nodes, nodes)).coalesce()
{made}


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, at, x):
        ctx.at = at
        return a @ x

    @staticmethod
    def backward(ctx, g):
        return None, None, ctx.at @ g


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(nodes, 32)

    def forward(self, rows):
        h = self.embed.weight
        for _ in range(3):
            h = {product}
        return h[rows]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(200):
{step}
"""
TRAINS = """\
    loss = model(torch.randint(nodes, (64,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INFERS = """\
    with torch.inference_mode():
        model(torch.randint(nodes, (64,)))
"""


def evidence_of(folder: Path, product: str, made: str = "", step: str = TRAINS) -> Evidence:
    script = SCRIPT.format(product=product, made=made, step=step)
    if step == INFERS:
        script = script.replace("optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)\n", "")
    (folder / "train.py").write_text(script)
    command = Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder))
    return Evidence.from_run(measure(command, folder / "run", QUICK))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("product", ["torch.sparse.mm(adj, h)", "adj @ h", "torch.spmm(adj, h)"])
def test_a_training_multiplies_forwards_and_backwards(tmp_path: Path, product: str) -> None:
    evidence = evidence_of(tmp_path, product)
    found = coo_products(evidence)
    assert found is not None and found.calls == 3 and found.forward_s > 0 and found.turning_s > 0
    assert found.backward_s == pytest.approx(found.forward_s, rel=0.8)
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.gain.likely > 1.5
    assert product in (tmp_path / "train.py").read_text().splitlines()[finding.site.line - 1]
    assert "ctx.At @ g" in RULE.fix(finding, Sources()).text


@pytest.mark.slow
@pytest.mark.sessions
def test_an_inference_needs_no_function(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, "adj @ h", step=INFERS)
    (finding,) = RULE.check(evidence)
    assert finding.evidence["backward_s"] == 0 and "ctx" not in RULE.fix(finding, Sources()).text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("product", "made"),
    [
        pytest.param("csr @ h", "csr = adj.to_sparse_csr()", id="CSR"),
        pytest.param(
            "Spread.apply(csr, turned, h)",
            "csr, turned = adj.to_sparse_csr(), adj.t().coalesce().to_sparse_csr()",
            id="as advised",
        ),
        pytest.param(
            "torch.sparse.mm(torch.sparse_coo_tensor(indices, torch.rand(60000), (nodes, nodes)), h)",
            "",
            id="made anew",
        ),
        pytest.param("adj.to_dense() @ h", "", id="a full one"),
    ],
)
def test_others_are_left_alone(tmp_path: Path, product: str, made: str) -> None:
    assert coo_products(evidence_of(tmp_path, product, made)) is None


def test_on_a_gpu_it_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert not list(RULE.check(scene(step_ms=60, gpu="NVIDIA H200").evidence(tmp_path)))
