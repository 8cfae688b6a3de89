"""What a loader delivers and no step reads is found by running scripts, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.unread_batch import UnreadBatch
from tests.conftest import PYTHON, QUICK

RULE = UnreadBatch()

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
shown = []


class Patches(Dataset):
    def __init__(self):
        self.scans = np.random.default_rng(0).integers(0, 255, (8, 1, 700, 700), dtype=np.uint8)

    def __len__(self):
        return 1600

    def __getitem__(self, i):
        scan = self.scans[i % 8].astype(np.float32) / 255
        return {{"patch": scan[:, 64:128, 64:128], {given}}}


model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for batch in DataLoader(Patches(), batch_size=8, shuffle=True):
        batch = {{name: each.to("cpu") for name, each in batch.items()}}
        loss = model(batch["patch"]).square().mean()
        {more}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SCAN = '"scan": scan'


def run_of(folder: Path, given: str, more: str = "") -> Run:
    (folder / "train.py").write_text(SCRIPT.format(given=given, more=more))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_scan_beside_each_patch_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path, SCAN)
    (loader,) = run.record.loaders
    assert loader.unread == {"['scan']": 8 * 700 * 700 * 4}
    (finding,) = RULE.check(Evidence.from_run(run))
    assert "99% of each batch was not read in the steps that were watched: ['scan'], 16 MB" in finding.summary
    assert finding.gain.likely > 1.2
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "Leave batch['scan'] out" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("given", "more"),
    [
        (SCAN, "loss = loss + batch['scan'].mean() * 0"),
        (SCAN, "shown[:] = [*shown[-8:], batch['scan']]"),  # for a picture, later
        (SCAN, "float(batch['scan'].numpy().max())"),
        ('"number": i', ""),  # small
    ],
)
def test_what_is_read_in_any_way_is_fine(tmp_path: Path, given: str, more: str) -> None:
    run = run_of(tmp_path, given, more)
    assert not run.record.loaders[0].unread and not list(RULE.check(Evidence.from_run(run)))
