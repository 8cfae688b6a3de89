"""Convolutions of 1x1 behind an upsampling are found by running scripts that have them, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.pointwise_after_upsampling import PointwiseAfterUpsampling
from tests.conftest import PYTHON, QUICK

RULE = PointwiseAfterUpsampling()

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)


class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 48, 3, padding=1)
        self.scores = nn.Conv2d(48, 4, 1)
        self.wide = nn.Conv2d(48, 4, 3, padding=1)
        self.padded = nn.Conv2d(48, 4, 1, padding=2)
        self.strided = nn.Conv2d(48, 4, 1, stride=2)

    def forward(self, x):
        x = F.relu(self.body(x))
        {body}


net, x = Masks(), torch.randn(4, 3, 24, 24)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(200):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def found(folder: Path, body: str) -> Finding | None:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return next(iter(RULE.check(Evidence.from_run(run))), None)


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_of_each_fine_pixel_are_found(tmp_path: Path) -> None:
    finding = found(tmp_path, 'return self.scores(F.interpolate(x, scale_factor=4, mode="bilinear"))')
    assert finding is not None and finding.site is not None and finding.site.line == 19
    assert "from 48 channels to 4" in finding.summary and finding.gain.likely > 2.0
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    changed = next(iter(fix.texts.values()))
    assert 'return F.interpolate(self.scores(x), scale_factor=4, mode="bilinear")' in changed


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "body",
    [
        "return F.interpolate(self.scores(x), scale_factor=4)",
        "return self.wide(F.interpolate(x, scale_factor=4))",
        "return self.padded(F.interpolate(x, scale_factor=4))",
        "return self.strided(F.interpolate(x, scale_factor=4))",
        "return self.scores(F.relu(F.interpolate(x, scale_factor=4)))",
        "return self.scores(F.interpolate(x, scale_factor=0.5))",
    ],
)
def test_what_cannot_change_places_or_would_gain_nothing(body: str, tmp_path: Path) -> None:
    assert found(tmp_path, body) is None


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("size", [(30, 41), (12, 12), (24, 24)])
def test_the_two_orders_are_the_same(mode: str, size: tuple[int, int]) -> None:
    """What the rule rests on: also at the borders, and with a bias."""
    x, conv = torch.randn(2, 6, 12, 12, dtype=torch.float64), torch.nn.Conv2d(6, 3, 1).double()
    torch.testing.assert_close(F.interpolate(conv(x), size, mode=mode), conv(F.interpolate(x, size, mode=mode)))
