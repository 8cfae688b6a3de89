"""A cache that lets go what is asked for again is told of by its own books, and made large enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Evidence
from advisor.findings import FindingDocument
from advisor.launch import Command, measure
from rules.small_cache import SmallCache
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import functools
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Clips(Dataset):
    def __init__(self, kept, files):
        self.files = files
        self.clip = {made}

    def _read(self, number):
        rng = np.random.default_rng(number)
        return np.sort(rng.standard_normal((32, 2000)), axis=1).astype(np.float32)

    def __len__(self):
        return 10 * self.files

    def __getitem__(self, index):
        return torch.from_numpy(self.clip({number})[{row}, :256].copy())


net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(Clips(kept={kept}, files={files}), batch_size=8, shuffle={shuffle})
for epoch in range({epochs}):
    for x in loader:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CACHED = "functools.lru_cache(maxsize=kept)(self._read)"


def told(
    folder: Path,
    made: str = CACHED,
    kept: int = 5,
    files: int = 30,
    shuffle: bool = True,
    number: str = "index % self.files",
    row: str = "index // self.files",
) -> list[FindingDocument]:
    script = folder / "train.py"
    code = SCRIPT.format(made=made, kept=kept, files=files, shuffle=shuffle, number=number, row=row, epochs=40)
    script.write_text(code)
    run = measure(Command(str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK, timeout=120)
    return [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == SmallCache.id]


@pytest.mark.slow
@pytest.mark.sessions
def test_one_of_few_results_for_many_files(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert finding.line == 17 and finding.fix.kind == "edit"
    assert "-loader = DataLoader(Clips(kept=5," in finding.fix.diff
    assert re.search(r"\+loader = DataLoader\(Clips\(kept=(64|128),", finding.fix.diff)  # of about 30
    assert finding.evidence["result_bytes"] == pytest.approx(32 * 2000 * 4, rel=0.05)
    # Of eight calls 8 * 25 / 30 compute theirs again.
    assert finding.evidence["misses_per_step"] == pytest.approx(8 * 25 / 30, rel=0.15)


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_asked_for_in_turn_is_never_there(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, shuffle=False)
    assert finding.evidence["misses_per_step"] == pytest.approx(8, rel=0.02)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"kept": 30}, id="large enough"),
        pytest.param({"made": "self._read"}, id="no cache"),
        # Clips of one file after another are asked for while it is there: nothing is read twice.
        pytest.param({"files": 3_000, "number": "index // 10", "row": "index % 10", "shuffle": False}, id="in groups"),
        # What is asked for once or twice only would not be there either.
        pytest.param({"files": 30_000}, id="hardly anything is asked for again"),
    ],
)
def test_nothing_is_let_go_that_is_asked_for_again(facts: dict[str, object], tmp_path: Path) -> None:
    assert told(tmp_path, **facts) == []  # type: ignore[arg-type]
