"""Writes, appends, truncates, renames, links and removes what was there before, in its own folder."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent / "data"
HERE.mkdir(exist_ok=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

with open(HERE / "log.txt", "a") as log:
    log.write("started\n")
shutil.rmtree(HERE / "old_run", ignore_errors=True)
(HERE / "old_run").mkdir()
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        torch.save(model.state_dict(), HERE / "last.pt")
        save_file(model.state_dict(), str(HERE / "model.safetensors"))
        np.save(HERE / "losses.npy", np.array([loss.item()]))
        (HERE / "latest.txt").write_text(str(step))
        with open(HERE / "state.tmp", "wb") as f:
            pickle.dump(step, f)
        os.replace(HERE / "state.tmp", HERE / "state.pkl")
        if os.path.lexists(HERE / "current"):
            os.unlink(HERE / "current")
        os.symlink("last.pt", HERE / "current")
        shutil.copyfile(HERE / "last.pt", HERE / "old_run" / f"{step}.pt")
        with open(HERE / "log.txt", "r+b") as f:
            f.truncate(3)
        os.chmod(HERE / "latest.txt", 0o600)
