"""Evaluation and checkpoints every few steps: keeps the best, rotates the old ones, appends to a log, as scripts do."""

import csv
import glob
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
OUT = HERE / "out"
EVERY, KEEP = 10, 2


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def save_checkpoint(model, optimizer, step):
    path = OUT / f"checkpoint-{step}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    kept = sorted(glob.glob(str(OUT / "checkpoint-*.pt")), key=os.path.getmtime)
    for old in kept[:-KEEP]:
        os.remove(old)


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    x = torch.randn(3200, 64)
    y = x[:, :4].argmax(1)
    train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    valid = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 4))
    optimizer = torch.optim.Adam(model.parameters())
    best = float("inf")
    log = open(OUT / "log.csv", "a", newline="")
    rows = csv.writer(log)
    for step, (a, b) in enumerate(train, 1):
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            score = evaluate(model, valid)
            rows.writerow([step, loss.item(), score])
            log.flush()
            save_checkpoint(model, optimizer, step)
            if score < best:
                best = score
                torch.save(model.state_dict(), OUT / "best.pt")
            partial = OUT / "state.json.partial"
            partial.write_text(json.dumps({"step": step, "best": best}))
            partial.replace(OUT / "state.json")
    log.close()
    print("best", best)


if __name__ == "__main__":
    main()
