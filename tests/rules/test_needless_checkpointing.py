"""Forwards that the backward runs again are seen in real runs, and told of where memory would hold what they spare."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.evidence.gradients.recomputing import recomputed_forward
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.run import Run
from rules.needless_checkpointing import NeedlessCheckpointing
from tests.conftest import PYTHON, QUICK

RULE = NeedlessCheckpointing()
SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
{imported}

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.out = nn.ModuleList(Block() for _ in range(6)), nn.Linear(256, 4)

    def forward(self, x):
        for block in self.blocks:
            x = {call}
        return self.out(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(200):
    x, y = torch.randn(128, 256, requires_grad=True), torch.randint(0, 4, (128,))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
IMPORTED = "from torch.utils.checkpoint import checkpoint"
# A layer of somebody's own, whose backward calls the forward's functions: nobody computes anything again.
OWN = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        for _ in range(4):
            F.linear(gradient, torch.eye(256))
        return 2 * gradient
"""


def run_of(folder: Path, call: str, imported: str = IMPORTED) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(call=call, imported=imported))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


def found(run: Run) -> Finding | None:
    return next(iter(RULE.check(Evidence.from_run(run))), None)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_that_run_again_are_told_of_where_memory_has_room(reentrant: bool, tmp_path: Path) -> None:
    run = run_of(tmp_path, f"checkpoint(block, x, use_reentrant={reentrant})")
    again = recomputed_forward(Evidence.from_run(run))
    assert again is not None and 0.8 < again.share <= 1.0  # 18 layers of 19
    # As long as the forward did, but for the last layer, and what a block's last product would give.
    forward_s = Evidence.from_run(run).breakdown.mean_s("forward")
    assert 0.4 * forward_s < again.seconds < 1.25 * forward_s
    finding = found(run)
    assert finding is not None and 1.1 < finding.gain.likely < 1.6
    assert finding.site is not None and finding.site.line == 26
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "train.py:26" in fix.text
    run.record.memory.host_total = run.record.memory.host_available = 2 << 30
    run.record.memory.rss_peak = 1 << 30
    assert found(run) is None, "17 times 0.8 GB are more than there is"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("call", "imported"), [("block(x)", IMPORTED), ("Scaled.apply(block(x))", IMPORTED + OWN)])
def test_layers_that_run_once_are_left_alone(call: str, imported: str, tmp_path: Path) -> None:
    assert found(run_of(tmp_path, call, imported)) is None
