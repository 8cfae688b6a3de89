"""Frozen weights that a narrow product is added to in each forward are found, and the two layers compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.low_rank_weight import LowRankWeight
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_({trained})
        self.scaling = {scaling}
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / 8)

    def forward(self, x):
        {forward}


model = nn.Sequential(*[Adapted(nn.Linear(512, 512)) for _ in range(4)])
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
for step in range({steps}):
    loss = model(torch.randn(24, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = {
    "trained": "False",
    "scaling": "0.5",
    "steps": "300",
    "forward": "weight = self.base.weight + self.scaling * (self.up @ self.down)\n"
    "        return F.linear(x, weight, self.base.bias)",
}


def findings(folder: Path, **parts: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(**{**PARTS, **parts}))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(LowRankWeight().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(PARTS["forward"], id="sum"),
        pytest.param(
            "return F.linear(x, (self.down.T @ self.up.T).T * self.scaling + self.base.weight, self.base.bias)",
            id="transposed",
        ),
        pytest.param(
            "return F.linear(x, torch.addmm(self.base.weight, self.up, self.down, alpha=0.5), self.base.bias)",
            id="addmm",
        ),
    ],
)
def test_narrow_products_that_are_added_to_frozen_weights_are_found(forward: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, forward=forward)
    assert finding.evidence["layers"] == 4 and finding.evidence["rank"] == 4
    assert finding.evidence["weight_shape"] == "512x512" and finding.gain.likely > 1.3
    if forward == PARTS["forward"]:
        assert finding.site is not None and finding.site.line == 19
        assert isinstance(LowRankWeight().fix(finding, Sources()), Edit)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        {"trained": "True"},
        {"scaling": "nn.Parameter(torch.ones(512, 1))"},
        {"forward": "return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scaling"},
        {"forward": "return F.linear(x, F.normalize(self.base.weight + self.up @ self.down), self.base.bias)"},
    ],
    ids=["trained", "a scale for each row", "beside", "as one weight"],
)
def test_silent_where_the_whole_weight_is_needed(parts: dict[str, str], tmp_path: Path) -> None:
    assert not findings(tmp_path, **parts)
