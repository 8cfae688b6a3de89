"""Pairs that a run writes out are found at the line that sums them, in the function whose operators wrote them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.algebra.pairwise import pairwise, passes_over
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.run import Run
from rules.pairwise_broadcast import PairwiseBroadcast
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

from parts import Likeness, distances

torch.manual_seed(0)
model, likeness = nn.Linear(64, 32), Likeness()
bank, few = torch.randn(400, 32), torch.randn(4, 32)
weights = torch.rand(300, 9, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    z = model(torch.randn(300, 64))
    loss = likeness(z, bank).mean() + distances(z, bank).mean()
    loss = loss + (z[:, None] * few[None]).sum(-1).mean()  # few: not worth a word
    loss = loss + (weights * z[:, None]).sum(-1).mean()  # no pairs of rows
    loss = loss + ((z[:, None, :2] - bank[None, :99, :2]) ** 2).sum(-1).mean()  # points in a plane
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

PARTS = """\
import torch
from torch import nn


class Likeness(nn.Module):
    def forward(self, z, bank):
        return (z.unsqueeze(1) * bank.unsqueeze(0)).sum(dim=2)


def distances(z, bank):
    difference = z[:, None] - bank
    return difference.norm(dim=-1)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "parts.py").write_text(PARTS)
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


def places(findings: list[Finding]) -> set[tuple[str, int]]:
    return {(Path(each.site.file).name, each.site.line) for each in findings if each.site is not None}


@pytest.mark.slow
@pytest.mark.xdist_group("pairs")
@pytest.mark.sessions  # whether a line is told of goes by its share of the time: alone, like the next
def test_lines_that_sum_over_pairs_are_found_and_rewritten(run: Run, tmp_path: Path) -> None:
    findings = list(PairwiseBroadcast().check(Evidence.from_run(run)))
    assert places(findings) == {("parts.py", 7), ("parts.py", 12)}
    for each in findings:
        assert each.evidence["pairs_shape"] == "300x400x32"
    diffs = []
    for each in findings:
        edit = PairwiseBroadcast().fix(each, Sources())
        assert isinstance(edit, Edit)
        diffs.append(edit.diff(Path(run.record.script).parent))
    added = {line[1:].strip() for diff in diffs for line in diff.splitlines() if line.startswith("+ ")}
    assert added == {
        "return z @ bank.mT",
        'return torch.cdist(z, bank, compute_mode="donot_use_mm_for_euclid_dist")',
    }


@pytest.mark.slow
@pytest.mark.sessions
def test_what_they_cost_is_worth_a_finding(run: Run) -> None:
    """Alone: beside other tests a step's times are none."""
    findings = list(PairwiseBroadcast().check(Evidence.from_run(run)))
    assert len(findings) == 2 and all(each.gain.likely > 1.05 for each in findings)


@pytest.mark.slow
@pytest.mark.xdist_group("pairs")
@pytest.mark.sessions  # its figures are shares of time: alone, as all such
def test_pairs_are_seen_in_the_function_that_writes_them(run: Run) -> None:
    evidence = Evidence.from_run(run)
    seen = {(each.operator, Path(each.file).name, each.line): number for each, number in pairwise(evidence).items()}
    for place in (("aten::mul", "parts.py", 6), ("aten::sub", "parts.py", 10), ("aten::sub", "train.py", 0)):
        assert seen[place] == pytest.approx(1.0, abs=0.3)
    (product,) = [
        each for each in pairwise(evidence) if each.operator == "aten::mul" and each.file.endswith("parts.py")
    ]
    (difference,) = [
        each for each in pairwise(evidence) if each.operator == "aten::sub" and each.file.endswith("parts.py")
    ]
    shares, others = passes_over(evidence, product), passes_over(evidence, difference)
    assert 0.05 < shares["aten::sum"] <= 1.0 and 0 < shares["aten::mul"] <= 1.0
    # Of one shape, in different functions: each has its own operators, and its part of the backward's.
    assert "aten::sub" not in shares and others["aten::sub"] > 0.2
    assert shares["aten::mul"] + others.get("aten::mul", 0.0) <= 1.01
    assert not passes_over(evidence, replace(product, line=1))


JOINED = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Contacts(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.rows = nn.Linear(20, width)
        self.pairs = nn.Linear(2 * width, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        h = self.rows(x)
        n = h.size(1)
        one, other = {joined}
        return self.out(torch.relu(self.pairs(torch.cat([one, other], dim=-1))))


model = Contacts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(300):
    loss = model(torch.randn(4, 40, 20)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BROADCAST = "h.unsqueeze(2).expand(-1, -1, n, -1), h.unsqueeze(1).expand(-1, n, -1, -1)"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("joined", "seen"),
    [
        pytest.param(BROADCAST, True, id="broadcast"),
        pytest.param("h[:, :, None] * h[:, None], h[:, :, None] - h[:, None]", False, id="other for each pair"),
        pytest.param("h, h.flip(1)", False, id="no pairs"),
    ],
)
def test_pairs_that_are_joined_for_a_layer_are_found(joined: str, seen: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOINED.format(joined=joined))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    findings = [each for each in PairwiseBroadcast().check(Evidence.from_run(run)) if each.parameters.get("joined")]
    assert len(findings) == seen
    for finding in findings:
        assert places([finding]) == {("train.py", 19)} and finding.gain.likely > 1.5
        assert finding.evidence["pairs_shape"] == "4x40x40x192" and "40 times" in finding.summary
        advice = PairwiseBroadcast().fix(finding, Sources())
        assert isinstance(advice, Advice) and "layer.weight.split" in advice.text
