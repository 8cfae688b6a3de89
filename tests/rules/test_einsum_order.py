"""Einsums of three operands whose order costs are found in real runs, and their edits give the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Draft, Edit, Sources
from advisor.edit.algebra.einsums import einsums
from advisor.evidence import Evidence
from advisor.evidence.algebra.einsum_order import costly_einsums
from advisor.launch import Command, measure
from rules.einsum_order import EinsumOrder
from tests.conftest import PYTHON, QUICK

RULE = EinsumOrder()

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(700, 16) / 9), nn.Parameter(torch.rand(16, 700) / 9)
        self.one = nn.Parameter(torch.rand(1, 16))

    def forward(self, x):
        {body}


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
for step in range(300):
    loss = net(torch.randn(32, 700)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COSTLY = 'return torch.einsum("ij,jk,bi->bk", self.a, self.b, x)'


def evidence_of(folder: Path, body: str) -> Evidence:
    (folder / "train.py").write_text(SCRIPT.format(body=body.replace("\n", "\n        ")))
    command = Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder))
    return Evidence.from_run(measure(command, folder / "run", QUICK))


@pytest.mark.slow
@pytest.mark.sessions
def test_the_narrow_operand_comes_before_the_wide_one(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, COSTLY)
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line == 15
    # 700 * 700 * (16 + 32) products against 32 * 700 * (16 + 16).
    assert float(str(finding.evidence["times_the_operations"])) > 3
    assert finding.gain.likely > 1.1 and finding.gain.high <= 2.0 * finding.gain.low
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert 'torch.einsum("ij,bi,jk->bk", self.a, x, self.b)' in text
    assert evidence.record is not None
    evidence.record.environment.packages["opt_einsum"] = "3.4.0"  # which PyTorch would have asked
    assert list(RULE.check(evidence)) == []


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "body",
    [
        pytest.param('return torch.einsum("bi,ij,jk->bk", x, self.a, self.b)', id="in the best order"),
        pytest.param(
            'return torch.einsum("ji,jk,bi->bk", self.a, self.a, x[:, :16])', id="the product of the first two is small"
        ),
        pytest.param(
            'y = torch.einsum("ij,jk,bi->bk", self.a, self.b, x)\n'
            'return y + torch.einsum("ij,jk,bk->bi", self.a, self.b, x)',
            id="one of two",
        ),
        pytest.param('return torch.einsum("ij,jk,...i->...k", self.a, self.b, x)', id="ellipsis"),
        pytest.param('return torch.einsum("ij,bj,bi->bi", self.a, self.one, x)', id="broadcast"),
    ],
)
def test_where_the_order_costs_nothing_or_is_unknown_nothing_is_said(body: str, tmp_path: Path) -> None:
    assert list(RULE.check(evidence_of(tmp_path, body))) == []


def written(text: str, folder: Path) -> list[tuple[tuple[str, ...], str, bool]]:
    (folder / "a.py").write_text(f"import torch\n{text}\n")
    found = einsums(Draft(Sources().source(str(folder / "a.py"))), 0)
    return [(each.terms, each.result, each.plain) for each in found]


@pytest.mark.parametrize(
    "call, known",
    [
        ('"ab,bc,cd", p, q, r', [(("ab", "bc", "cd"), "ad", True)]),
        ('"ab, bc, cd -> da", p, self.q, r', [(("ab", "bc", "cd"), "da", True)]),
        ('"ab,bc,cd->ad", p, q(), r', [(("ab", "bc", "cd"), "ad", False)]),
        ('"ab,bc->ac", p, q', []),
        ('"aa,ab,bc->c", p, q, r', []),  # a diagonal
        ('"ab,bc,ce->a", p, q, r', []),  # what only one has is summed alone
        ('"...a,ab,bc->...c", p, q, r', []),
        ('"ab,bc,cd->ad", *parts', []),
        ("equation, p, q, r", []),
    ],
)
def test_what_is_written_is_read_or_left_alone(
    call: str, known: list[tuple[tuple[str, ...], str, bool]], tmp_path: Path
) -> None:
    assert written(f"y = torch.einsum({call})", tmp_path) == known


def test_a_run_without_a_window_with_shapes_has_none(tmp_path: Path, scene: object) -> None:
    made = scene(10.0)  # type: ignore[operator]
    made.operator("aten::einsum", 1.0, 9.0)
    assert costly_einsums(made.evidence(tmp_path), lambda function: ()).counts == {}
