"""A product that is computed for its diagonal is found in a real run, and rows are multiplied afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Drafts, Edit, Sources
from advisor.edit.algebra.diagonals import Taken, diagonals, take
from advisor.evidence import Evidence
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain
from rules.diagonal_product import DiagonalProduct
from tests.conftest import PYTHON, QUICK


def changed(code: str) -> str:
    """The function's text once rows are multiplied in it; as it was where nothing is known to be taken so."""
    drafts = Drafts(Sources({"/nowhere/train.py": code}))
    draft = drafts["/nowhere/train.py"]
    for each in diagonals(draft, 3):
        if isinstance(each, Taken):
            take(draft, each)
    return draft.render()


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("torch.diag(a @ b.T)", "(a * b).sum(-1)"),
        ("torch.trace(a @ c)", "(a * c.mT).sum()"),
        ("(a @ c).diagonal()", "(a * c.mT).sum(-1)"),
        ("torch.diagonal(torch.mm(a, b.t()))", "(a * b).sum(-1)"),
        ("a.mm(c).trace()", "(a * c.mT).sum()"),
        ("(a - b).matmul((a - b).T).diag()", "((a - b) * (a - b)).sum(-1)"),
        ("torch.diag(a @ s @ a.transpose(0, 1))", "(a @ s * a).sum(-1)"),
        ("torch.diag(a @ (s @ c))", "(a * (s @ c).mT).sum(-1)"),
        ("torch.diag(a @ torch.t(b @ s))", "(a * (b @ s)).sum(-1)"),
        ("2 * torch.trace(a @ c + b @ a.T - b @ c)", "2 * ((a * c.mT).sum() + (b * a).sum() - (b * c.mT).sum())"),
        ("torch.trace(a @ c - (b @ c - a @ b.T))", "((a * c.mT).sum() - ((b * c.mT).sum() - (a * b).sum()))"),
        ("-torch.trace(-a @ c)", "-((-a) * c.mT).sum()"),
    ],
)
def test_the_same_comes_of_rows(body: str, after: str) -> None:
    code = f"import torch\n\ndef f(a, b, c, s):\n    return {body}\n"
    edited = changed(code)
    assert edited == code.replace(body, after)
    values = []
    for text in (code, edited):
        scope: dict[str, Any] = {}
        exec(text, scope)
        torch.manual_seed(0)
        values.append(scope["f"](torch.rand(7, 5), torch.rand(7, 5), torch.rand(5, 7), torch.rand(5, 5)))
    torch.testing.assert_close(values[0], values[1])


@pytest.mark.parametrize(
    "body",
    [
        "m = a @ c\n    return torch.diag(m) + m.sum(1)",
        "return torch.diag(a @ c, 1)",
        "return torch.diag(a[:, 0])",
        "return torch.trace((a @ c).exp())",
        "return torch.trace(a @ c * (a @ c))",
        "return numpy.diag(a @ c)",
        "return (a @ c).diagonal(dim1=-2, dim2=-1)",
        "m = a @ c\n    b = g(m)\n    return torch.diag(m)",
    ],
)
def test_where_more_is_used_nothing_is_changed(body: str) -> None:
    module = "numpy" if "numpy" in body else "torch"
    code = f"import {module}\n\ndef f(a, b, c, s):\n    {body}\n"
    assert changed(code) == code


SCRIPT = """\
import torch
from torch import nn

torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
precision = torch.eye(32)


def distance(x, centre):
    d = x - centre
    {body}


optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(300):
    x = torch.randn(900, 32)
    loss = distance(net(x), x.mean(0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "more", ["torch.diag(d[0])", "(d @ precision).diagonal()"], ids=["a matrix of one", "a second diagonal"]
)
def test_a_function_with_another_diagonal_is_left_alone(more: str) -> None:
    code = f"import torch\n\ndef f(d, precision):\n    return torch.diag(d @ d.T), {more}\n"
    finding = Finding(
        rule=DiagonalProduct.id,
        title="",
        summary="",
        gain=Gain(1.0, 1.5, 2.0),
        evidence={},
        site=Site("/nowhere/train.py", 4),
        parameters={"function": 3, "alone": True},
    )
    assert isinstance(DiagonalProduct().fix(finding, Sources({"/nowhere/train.py": code})), Advice)


def findings(folder: Path, body: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(DiagonalProduct().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_distance_by_all_pairs_of_rows(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, "return torch.diag(d @ precision @ d.T)")
    assert finding.site is not None and finding.site.line == 11
    assert finding.evidence["rows"] == 900 and finding.evidence["inner"] == 32
    assert finding.gain.likely > 1.5
    fix = DiagonalProduct().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "return (d @ precision * d).sum(-1)" in fix.texts[str(tmp_path / "train.py")]


@pytest.mark.slow
@pytest.mark.sessions
def test_all_pairs_that_are_wanted(tmp_path: Path) -> None:
    assert not findings(tmp_path, "m = d @ precision @ d.T\n    return torch.logsumexp(m, 1) - torch.diag(m)")
