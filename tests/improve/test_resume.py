"""A session that was killed goes on where it was, and what its script had touched is put back first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.restore import recover
from tests.conftest import PYTHON, tree

# A loader that waits, and a script that writes over a file of its user's at every step.
SCRIPT = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Photos(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((16,), index / 4000), index % 2


def main():
    loader = DataLoader(Photos(), batch_size=8)
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("best.txt", "w") as file:
            file.write(str(loss.item()))


if __name__ == "__main__":
    main()
"""

# The command with windows as short as they can be.
RUN = """\
import sys
from dataclasses import replace
from pathlib import Path
from advisor.profile import profile, resume
from advisor.session import Settings
from tests.conftest import QUICK

options = replace(QUICK, min_seconds=0.2, min_steps=10)
script, python, session = sys.argv[1:]
if session:
    resume(Path(session), options=options)
else:
    folder = Path(script).parent
    settings = Settings(script=script, python=python, cwd=str(folder), accept="loader-workers", timeout=120.0)
    profile(settings, folder / "advisor_runs", options=options)
"""


def start(script: Path, session: str = "") -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", RUN, str(script), PYTHON, session], env=environment, cwd=root)


def until(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "it was over too soon"
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("moment", ["baseline/status.json", "01-loader-workers/pairs/2-after/status.json"])
def test_a_killed_session_goes_on_without_repeating_what_is_done(tmp_path: Path, moment: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "best.txt").write_text("mine")
    before = tree(tmp_path)
    session = tmp_path / "advisor_runs" / "train-1"
    process = start(tmp_path / "train.py")
    until(session / moment, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {
        path: path.stat().st_mtime_ns
        for path in session.rglob("run.json")
        if json.loads(path.read_text())["advisor"] and json.loads(path.read_text())["complete"]
    }
    assert bool(finished) == ("pairs" in moment)

    recover(session)
    now = tree(tmp_path)
    assert {name: now[name] for name in before} == before
    assert start(tmp_path / "train.py", str(session)).wait() == 0

    for path, changed in finished.items():
        assert path.stat().st_mtime_ns == changed, f"{path} was run again"
    document = json.loads((session / "findings.json").read_text())
    assert document["outcome"]["trials"][0]["status"] == "kept"
    now = tree(tmp_path)
    assert {name: now[name] for name in before} == before
    assert not list(session.rglob("journal.jsonl"))
