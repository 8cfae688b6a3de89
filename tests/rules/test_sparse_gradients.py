"""Large embedding tables with dense gradients are found in real runs, and only where sparse ones would do."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.gradients.embeddings import dense_tables, dense_work, other_lookups
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Safety
from rules.sparse_gradients import SparseGradients, _places
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(120_000, 32)
        {made}
        self.out = nn.Linear(64, 1)

    def forward(self, user, item):
        {forward}


model = Ratings()
{before}
optimizer = torch.optim.{optimizer}
for step in range(400):
    loss = model(torch.randint(0, 120_000, (64,)), torch.randint(0, 120_000, (64,))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = {
    "made": "self.users = nn.Embedding(120_000, 32)",
    "forward": "return self.out(torch.cat([self.users(user), self.items(item)], 1))",
    "before": "",
    "optimizer": "SGD(model.parameters(), lr=0.1)",
}


def evidence_of(folder: Path, **parts: str) -> Evidence:
    (folder / "train.py").write_text(dedent(SCRIPT).format(**{**PARTS, **parts}))
    return Evidence.from_run(
        measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    )


def findings(evidence: Evidence) -> list[Finding]:
    return list(SparseGradients().check(evidence))


@pytest.mark.slow
def test_dense_tables_are_found_and_made_sparse(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path)
    (tables,) = dense_tables(evidence)
    assert (tables.rows, tables.width, tables.number) == (120_000, 32, 2)
    assert tables.lookups == pytest.approx(128)
    assert other_lookups(evidence, [tables]) == (0, 0, 0)
    shares = dense_work(evidence, [tables])
    assert shares["aten::embedding_dense_backward"] == pytest.approx(1.0) and shares["aten::add_"] > 0.5
    assert shares.get("aten::addmm", 0.0) == 0.0 and "aten::index_select" not in shares
    (finding,) = findings(evidence)
    assert finding.gain.likely > 1.5 and finding.safety is Safety.NUMERIC
    edit = SparseGradients().fix(finding, Sources())
    assert isinstance(edit, Edit)
    added = [line for line in edit.diff(tmp_path).splitlines() if line.startswith("+ ")]
    assert len(added) == 2 and all(line.endswith("sparse=True)") for line in added)


@pytest.mark.slow
@pytest.mark.sessions
def test_adam_is_told_of_its_sparse_kind(tmp_path: Path) -> None:
    (finding,) = findings(evidence_of(tmp_path, optimizer="Adam(model.parameters())"))
    assert finding.safety is None and 2 < finding.gain.likely < 60  # the embeddings are nearly all of the step
    advice = SparseGradients().fix(finding, Sources())
    assert isinstance(advice, Advice) and "SparseAdam" in advice.text


TWO = """\
Adagrad(model.{tables}.parameters(), lr=0.1)
rest = torch.optim.Adam([each for name, each in model.named_parameters() if not name.startswith("{tables}")])
optimizer.register_step_post_hook(lambda *_: rest.step())"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("tables", ["tables", "out"])
def test_of_two_optimizers_that_counts_which_has_the_tables(tmp_path: Path, tables: str) -> None:
    made = {
        "made": "self.tables = nn.ModuleList([self.items, nn.Embedding(120_000, 32)]); del self.items",
        "forward": "return self.out(torch.cat([self.tables[0](user), self.tables[1](item)], 1))",
    }
    (finding,) = findings(evidence_of(tmp_path, **made, optimizer=TWO.format(tables=tables)))
    fix = SparseGradients().fix(finding, Sources())
    if tables == "out":  # Adam has them, then
        assert finding.parameters["optimizer"] == "Adam" and isinstance(fix, Advice) and "SparseAdam" in fix.text
    else:
        assert finding.parameters["optimizer"] == "Adagrad" and isinstance(fix, Edit)
        assert fix.diff(tmp_path).count("sparse=True") == 2


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        # The weights of the last layer, too.
        {"made": "self.users = self.items", "forward": "return self.users(user) @ self.items.weight.t()[:, :500]"},
        {"before": "model.items.requires_grad_(False)\nmodel.users.requires_grad_(False)"},
        {
            "made": "self.items = self.users = nn.Embedding(500, 32)",
            "forward": PARTS["forward"].replace("r)", "r % 500)").replace("m)", "m % 500)"),
        },
        {"made": "self.items = self.users = nn.Embedding(120_000, 32, sparse=True)"},
        {"optimizer": "RMSprop(model.parameters())"},
    ],
    ids=["tied", "frozen", "small", "sparse", "rmsprop"],
)
def test_silent_where_they_would_gain_nothing(tmp_path: Path, parts: dict[str, str]) -> None:
    assert not findings(evidence_of(tmp_path, **parts))


@pytest.mark.parametrize(("tables", "alike"), [("lookup(9, 4), lookup(8, 4)", True), ("lookup(9, 4), 0", False)])
def test_a_helper_that_makes_every_table_is_the_place(tables: str, alike: bool, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "ranker.py"
    path.write_text(
        "from torch import nn\n\ndef lookup(rows, width):\n    return nn.Embedding(rows, width)\n\n"
        f"class Net(nn.Module):\n    def __init__(self):\n        self.user, self.shop = {tables}\n"
    )
    made = scene(10.0)
    made.record.models[0].file, made.record.models[0].own = str(path), {"Net": str(path)}
    (place,), several = _places(made.evidence(tmp_path))
    assert (place.file, place.line, several) == (str(path), 4, alike)


def test_a_function_of_another_module_makes_the_tables(scene: Any, tmp_path: Path) -> None:
    path, tables = tmp_path / "ranker.py", tmp_path / "tables.py"
    path.write_text("from tables import made\n\nclass Net:\n    def __init__(self):\n        self.all = made([9, 8])\n")
    tables.write_text(
        "from torch import nn\n\ndef table(rows):\n    return nn.Embedding(rows, 4)\n\n"
        "def made(sizes):\n    return nn.ModuleList(table(rows) for rows in sizes)\n"
    )
    given = scene(10.0)
    given.record.models[0].file, given.record.models[0].own = str(path), {"Net": str(path)}
    given.record.modules = {str(path): "ranker", str(tables): "tables"}
    (place,), several = _places(given.evidence(tmp_path))
    assert (place.file, place.line, several) == (str(tables), 4, True)
