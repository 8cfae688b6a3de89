"""Rows that are multiplied by zero are found by running scripts, where they could be left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.zero_weighted_rows import ZeroWeightedRows
from tests.conftest import PYTHON, QUICK

RULE = ZeroWeightedRows()
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
router = nn.Linear(64, 4)
optimizer = torch.optim.SGD([*experts.parameters(), *router.parameters()], lr=0.01)
for step in range(600):
    x = torch.randn(256, 64)
    scores = router(x).softmax(-1)
    best = scores.topk({asked}, dim=-1)
    gate = torch.zeros_like(scores).scatter(1, best.indices, best.values)
    out = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        {added}
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DENSE = "out = out + gate[:, i, None] * expert(x)"
SPARSE = "rows = gate[:, i].nonzero()[:, 0]; out = out.index_add(0, rows, gate[rows, i, None] * expert(x[rows]))"


def found(folder: Path, asked: int, added: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(asked=asked, added=added))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(RULE.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_experts_that_compute_what_their_gate_takes_away(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, 1, DENSE)
    assert finding.site is not None and finding.site.line == 16 and finding.gain.likely > 1.3
    assert finding.evidence["rows"] == 256 and finding.evidence["zero_share"] == pytest.approx(0.75, abs=0.02)
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "train.py:16" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("asked", "added"), [(1, SPARSE), (4, DENSE), (3, DENSE)])
def test_experts_that_compute_what_is_taken(asked: int, added: str, tmp_path: Path) -> None:
    assert not found(tmp_path, asked, added)


TERM = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
weights = {{"task": 1.0, "recon": {weight}}}
encoder, head, decoder = (nn.Sequential(nn.Linear(a, 512), nn.ReLU(), nn.Linear(512, b)) for a, b in SIZES)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters(), *decoder.parameters()], lr=0.01)
for step in range(400):
    x = torch.randn(256, 256)
    z = encoder(x)
    recon = decoder(z)
    terms = {{"task": head(z).square().mean(), "recon": (recon - x).square().mean()}}
    loss = sum(weights[name] * term for name, term in terms.items())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("weight", "told"), [(0.0, True), (0.1, False)])
def test_a_term_that_the_loss_has_a_weight_of_nothing_for(weight: float, told: bool, tmp_path: Path) -> None:
    source = TERM.replace("SIZES", "((256, 64), (64, 8), (64, 256))").format(weight=weight)
    (tmp_path / "train.py").write_text(source)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    findings = list(RULE.check(Evidence.from_run(run)))
    assert bool(findings) is told
    if told:
        (finding,) = findings
        assert finding.site is not None and finding.site.line == 12 and finding.gain.likely > 1.15
        fix = RULE.fix(finding, Sources())
        assert isinstance(fix, Advice) and "only where its weight is not 0" in fix.text
