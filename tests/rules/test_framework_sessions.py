"""A whole session for each framework: changed where the script tells it, tried, faster; the script runs to its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from advisor.profile import profile
from tests.conftest import PYTHON
from tests.improve.test_loop import SHORT, only_trial, settings

pytestmark = [pytest.mark.slow, pytest.mark.sessions]

DATA = """\
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Photos(Dataset):  # over a slow network
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        time.sleep(0.003)
        return {"x": torch.full((16,), index / 4000), "labels": index % 2}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 2)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


"""
TRANSFORMERS = (
    DATA
    + """\
from transformers import Trainer, TrainingArguments

if __name__ == "__main__":
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=Net(), args=args, train_dataset=Photos()).train()
    print("trained")
"""
)
LIGHTNING = (
    DATA
    + """\
import lightning as L

WORKERS = 0


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return DataLoader(Photos(), batch_size=8, shuffle=True, num_workers=WORKERS)


if __name__ == "__main__":
    L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Module())
    print("trained")
"""
)
ACCELERATE = (
    DATA
    + """\
from accelerate import Accelerator

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    photos = DataLoader(Photos(), batch_size=8)
    net, optimizer, photos = accelerator.prepare(net, optimizer, photos)
    for batch in photos:
        optimizer.zero_grad()
        accelerator.backward(net(**batch)["loss"])
        optimizer.step()
    print("trained")
"""
)
CASES = {
    "transformers": (TRANSFORMERS, "        dataloader_num_workers="),
    "lightning": (LIGHTNING, "WORKERS = "),
    "accelerate": (ACCELERATE, "    photos = DataLoader(Photos(), batch_size=8, num_workers="),
}


@pytest.mark.sessions
@pytest.mark.parametrize(("code", "changed"), CASES.values(), ids=CASES.keys())
def test_workers_are_given_where_the_script_says_it(code: str, changed: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(code)
    done = profile(settings(path, "loader-workers"), tmp_path / "advisor_runs", options=SHORT)
    trial = only_trial(done)
    # Where other programs keep the machine busy, its runs may differ by too much to say how large the gain is.
    assert trial.status in ("kept", "inconclusive"), trial.reason
    assert trial.measured is not None and trial.measured.speedup > 1.2
    assert trial.numerics is not None and trial.numerics.drift == 0
    subprocess.run(["git", "apply", "-"], input=trial.fix.diff, text=True, cwd=tmp_path, check=True)
    before, after = code.splitlines(), path.read_text().splitlines()
    assert any(line.startswith(changed) and line not in before for line in after)
    ran = subprocess.run(
        [PYTHON, str(path)], cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert ran.returncode == 0 and "trained" in ran.stdout, ran.stderr
