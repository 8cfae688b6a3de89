"""A Gram matrix of the longer side is found in a real run, and the shorter side gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Draft, Drafts, Edit, Sources
from advisor.edit.algebra.grams import grams, is_penalty, is_polynomial, turn
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.gram_side import GramSide
from tests.conftest import PYTHON, QUICK

LOOP = """
def orthogonal(g, steps=5):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.{t}
        x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x
    return {end}
"""


def drafted(code: str) -> Draft:
    return Drafts(Sources({"/nowhere/train.py": code}))["/nowhere/train.py"]


@pytest.mark.parametrize("t", ["mT", "T", "t()", "transpose(-2, -1)"])
@pytest.mark.parametrize("end", ["x", "x.to(g.dtype)"])
@pytest.mark.parametrize("shape", [(40, 8), (8, 40)])
def test_a_turned_matrix_gives_the_same(t: str, end: str, shape: tuple[int, int]) -> None:
    code = LOOP.format(t=t, end=end)
    draft = drafted(code)
    (gram,) = grams(draft, 2)
    assert turn(draft, gram) == ""
    values = []
    for text in (code, draft.render()):
        scope: dict[str, Any] = {}
        exec(text, scope)
        torch.manual_seed(0)
        values.append(scope["orthogonal"](torch.randn(shape)))
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("what", "otherwise"),
    [
        ("return x", "return x, s"),
        ("return x", "print(x.shape)\n    return x"),
        ("(-4.775 * s", "(-4.775 * s * mask"),  # which may be a number in the run
        ("x @ x.mT", "x.mT @ x"),
        ("    for _ in range(steps):\n        s", "    if steps:\n        s"),
        ("range(steps)", "range(x.size(0))"),
        ("@ x\n", "@ x + g\n"),
        ("@ x\n", "@ x / x.size(0)\n"),
        ("@ x\n", "@ x\n        if s.norm() > 9:\n            break\n"),
        ("@ x\n", "@ x\n        total += x\n"),
        ("@ x\n", "@ x\n        x.mul_(0.5)\n"),
    ],
)
def test_what_else_is_of_the_longer_side_stays(what: str, otherwise: str) -> None:
    code = LOOP.format(t="mT", end="x")
    assert what in code
    draft = drafted(code.replace(what, otherwise))
    (gram,) = grams(draft, 2)
    assert turn(draft, gram) and not draft.changed


@pytest.mark.parametrize(
    ("made", "edited"),
    [
        ("a, b, c = 3.4445, -4.775, 2.0315", True),
        ("a, b, c = COEFFS", True),
        ("a, b, c = self.constants", False),
        ("a, b, c = coefficients()", False),
        ("a = 2.0", False),  # and the others from elsewhere
    ],
)
def test_numbers_have_no_shape(made: str, edited: bool) -> None:
    code = LOOP.format(t="mT", end="x").replace("    x = g", f"    {made}\n    x = g") + "\nCOEFFS = (3.4, -4.8, 2.0)\n"
    draft = drafted(code.replace("3.4445 * x + (-4.775 * s + 2.0315", "a * x + (b * s + c"))
    (gram,) = grams(draft, 2)
    assert (turn(draft, gram) == "") is edited and is_polynomial(draft, gram)


@pytest.mark.parametrize(
    "update",
    [
        "x = (1.5 * x - 0.5 * s @ x) - torch.mean(x, 0)",
        "x = torch.softmax(1.5 * x - 0.5 * s @ x, 1)",
        "x = torch.softmax(s, -1) @ x",
        "x = (s * s) @ x",
        "x = s**2 @ x",
        "x = (0.5 * s + 0.1) @ x",
        "x = s @ x - x[0]",
        "x = (s + bias) @ x",
        "x = s @ v",
    ],
)
def test_what_is_no_polynomial_of_the_gram_matrix(update: str) -> None:
    before = "x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x"
    draft = drafted(LOOP.format(t="mT", end="x").replace(before, update))
    (gram,) = grams(draft, 2)
    assert turn(draft, gram) and not draft.changed and not is_polynomial(draft, gram)


@pytest.mark.parametrize(
    "more",
    ["x = torch.softmax(y, 1)", "x = y - y[0]", "print(y)\n        x = y", "z = x = y", "x = y\n        y = x + g"],
)
def test_every_statement_of_a_round_is_looked_at(more: str) -> None:
    """What comes behind the product with the polynomial may be of rows, or of columns."""
    before = "x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x"
    draft = drafted(LOOP.format(t="mT", end="x").replace(before, f"y = 1.5 * x - 0.5 * s @ x\n        {more}"))
    (gram,) = grams(draft, 2)
    assert turn(draft, gram) and not draft.changed and is_polynomial(draft, gram)


def test_the_matrix_is_laid_out_as_before() -> None:
    draft = drafted(LOOP.format(t="mT", end="x.view(-1)"))
    (gram,) = grams(draft, 2)
    assert turn(draft, gram) == ""
    scope: dict[str, Any] = {}
    exec(draft.render(), scope)
    assert scope["orthogonal"](torch.randn(9, 3)).shape == (27,)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss = ((w @ w.T - torch.eye(len(w))) ** 2).sum()", True),
        ("loss = (torch.mm(w, w.t()) - eye).pow(2).sum()", True),
        ("loss = torch.sum(torch.square(w @ w.T - eye.to(w.device)))", True),
        ("loss = (torch.mm(w, w.t()) - eye).pow(2).mean()", False),
        ("loss = ((w @ w.T - eye) ** 2 * mask).sum()", False),
        ("loss = ((w @ w.T - eye) ** 2).sum(1).max()", False),
        ("loss = torch.norm(w @ w.T - eye, dim=1) ** 2", False),
        ("loss = ((w @ w.T - (eye + corr)) ** 2).sum()", False),
        ("gram = w @ w.T\n    loss = (gram - eye).square().sum()", True),
        ("gram = w @ w.T\n    loss = (gram - eye).square().sum() + gram.trace()", False),
        ("loss = torch.norm(w @ w.T - eye) ** 2", True),
        ("loss = (w @ w.T - eye).norm()", False),
        ("loss = ((w @ w.T - eye) * mask).pow(2).sum()", False),
        ("loss = ((w @ w.T - target) ** 2).sum()", False),
        ("loss = (w @ w.T - eye).pow(4).sum()", False),
        ("loss = (w @ w.T).square().sum()", False),
    ],
)
def test_squared_distances_from_the_identity(body: str, expected: bool) -> None:
    draft = drafted(f"import torch\n\ndef f(w, eye):\n    {body}\n    return loss\n")
    (gram,) = grams(draft, 3)
    assert is_penalty(draft, gram) is expected


SCRIPT = """
import torch
from torch import nn

def orthogonal(g, steps):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x
    return x

class Turned(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.01))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(orthogonal(p.grad, 5), alpha=group["lr"])

def penalty(w):
    return ((w @ w.T - torch.eye(len(w))) ** 2).sum()

def similar(x):
    return (x @ x.T).softmax(-1) @ x

model = nn.Linear({columns}, {rows}, bias=False)
optimizer = {optimizer}
for step in range(400):
    optimizer.zero_grad()
    loss = model({given}).square().mean(){more}
    loss.backward()
    optimizer.step()
"""
SGD = "torch.optim.SGD(model.parameters(), lr=1e-3)"


def findings(folder: Path, **parts: Any) -> tuple[Path, list[Finding]]:
    given = {"columns": 96, "rows": 384, "optimizer": SGD, "more": "", "given": "torch.randn(4, 96)"} | parts
    script = folder / "train.py"
    script.write_text(SCRIPT.format(**given))
    command = Command(str(script), python=PYTHON, cwd=str(folder))
    return script, list(GramSide().check(Evidence.from_run(measure(command, folder / "run", QUICK, timeout=240))))


@pytest.mark.slow
def test_an_optimizer_that_orthogonalizes_tall_updates(tmp_path: Path) -> None:
    script, (finding,) = findings(tmp_path, optimizer="Turned(model.parameters())")
    assert finding.site is not None and finding.site.line == 8
    assert finding.evidence["longer"] == 384 and finding.evidence["shorter"] == 96
    assert finding.gain.likely > 2
    fix = GramSide().fix(finding, Sources())
    assert isinstance(fix, Edit) and "is_tall = x.size(-2) > x.size(-1)" in fix.diff(str(script.parent))


@pytest.mark.slow
def test_a_penalty_on_the_longer_side(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, more=" + penalty(model.weight)")
    assert finding.site is not None and finding.site.line == 23
    assert isinstance(GramSide().fix(finding, Sources()), Advice)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"optimizer": "Turned(model.parameters())", "columns": 384, "rows": 96,
                      "given": "torch.randn(4, 384)"}, id="wide already"),
        pytest.param({"more": " + similar(model.weight).mean()"}, id="attention to itself"),
    ],
)  # fmt: skip
def test_what_is_needed_as_it_is(parts: dict[str, Any], tmp_path: Path) -> None:
    assert findings(tmp_path, **parts)[1] == []
