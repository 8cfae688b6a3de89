"""Products with sparse matrices in COO are found by running scripts that have them, and none in what is advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.evidence.algebra.coo_products import CooProducts, coo_products
from advisor.launch import Command, measure
from rules.coo_product import CooProduct, _line
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
        return h[rows]{beside}


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


def evidence_of(folder: Path, product: str, made: str = "", step: str = TRAINS, beside: str = "") -> Evidence:
    script = SCRIPT.format(product=product, made=made, step=step, beside=beside)
    if step == INFERS:
        script = script.replace("optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)\n", "")
    (folder / "train.py").write_text(script)
    command = Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder))
    return Evidence.from_run(measure(command, folder / "run", QUICK))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("product", ["torch.sparse.mm(adj, h)", "adj @ h", "torch.spmm(adj, h)", "adj.mm(h)"])
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
def test_sparse_gradients_of_an_embedding_are_no_matrices(tmp_path: Path) -> None:
    made = "extra = nn.Embedding(50, 32, sparse=True)"
    updates = "    torch.optim.SparseAdam(extra.parameters()).step()\n    extra.weight.grad = None\n"
    evidence = evidence_of(tmp_path, "adj @ h", made, TRAINS + updates, beside=" + extra(rows % 50)")
    assert coo_products(evidence) is not None


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
            "csr = adj.to_sparse_csr(); turned = csr.t().to_sparse_csr()",
            id="as advised",
        ),
        pytest.param(
            "torch.sparse.mm(torch.sparse_coo_tensor(indices, torch.rand(60000), (nodes, nodes)), h)",
            "",
            id="made anew",
        ),
        pytest.param("adj.to_dense() @ h", "", id="a full one"),
        pytest.param("torch.sparse.mm(entries, h)", "entries = adj.clone().requires_grad_()", id="one that is trained"),
    ],
)
def test_others_are_left_alone(tmp_path: Path, product: str, made: str) -> None:
    assert coo_products(evidence_of(tmp_path, product, made)) is None


def test_what_is_advised_computes_the_same() -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec(SCRIPT[SCRIPT.index("class Spread") : SCRIPT.index("class Net")], namespace)
    indices = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
    a = torch.sparse_coo_tensor(indices, torch.rand(200), (50, 50)).coalesce()
    x = torch.rand(50, 3, requires_grad=True)
    weights = torch.rand(50, 3)
    before = torch.sparse.mm(a, x)
    csr = a.to_sparse_csr()
    after = namespace["Spread"].apply(csr, csr.t().to_sparse_csr(), x)
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(
        *(torch.autograd.grad((each * weights).sum(), x)[0] for each in (after, before))
    )


def found_(**facts: float) -> CooProducts:
    given: dict[str, Any] = {"calls": 3.0, "forward_s": 15e-3, "backward_s": 15e-3, "turning_s": 3e-3, "function": None}
    return CooProducts(**{**given, **facts})


@pytest.mark.parametrize(
    ("gpu", "facts", "reported"),
    [
        ("", {}, True),
        ("NVIDIA H200", {}, False),
        ("", {"forward_s": 1e-3, "backward_s": 1e-3, "turning_s": 0.0}, False),
    ],
)
def test_where_it_takes_time_on_a_cpu(
    gpu: str, facts: dict[str, float], reported: bool, scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scene(step_ms=60, gpu=gpu)
    made.operator("aten::mm", 2, 50)
    monkeypatch.setattr("rules.coo_product.coo_products", lambda evidence: found_(**facts))
    assert [each.site for each in RULE.check(made.evidence(tmp_path))] == ([None] if reported else [])


LAYER = """
import torch

class Layer(torch.nn.Module):
    def forward(self, x):
        PRODUCTS

for step in range(9):
    h = adj @ h
"""


@pytest.mark.parametrize(
    ("products", "function", "line"),
    [
        pytest.param("return torch.sparse.mm(self.adj, x @ self.weight)", 5, 6, id="the sparse one"),
        pytest.param("return self.adj.mm(x)", 5, 6, id="a method"),
        pytest.param("y = x @ self.weight; return self.adj.mm(y)", 5, 6, id="two on a line"),
        pytest.param("y = x @ self.weight\n        return self.adj.mm(y)", 5, 5, id="one of two"),
        pytest.param("return x", 0, 9, id="no function"),
    ],
)
def test_the_line_is_named_where_it_is_one(products: str, function: int, line: int, tmp_path: Path) -> None:
    path = tmp_path / "layer.py"
    path.write_text(LAYER.replace("PRODUCTS", products))
    site = _line((str(path), function))
    assert site is not None and site.line == line
