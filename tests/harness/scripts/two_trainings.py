"""One model is trained, then another by what it says: two phases, each with an optimizer of its own."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--first", type=int, default=100)
parser.add_argument("--second", type=int, default=60)
args = parser.parse_args()


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, steps: int, target) -> None:
    for _ in range(steps):
        x = torch.randn(batch, 16)
        loss = nn.functional.mse_loss(model(x), target(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)


teacher, student = nn.Linear(16, 4), nn.Linear(16, 4, bias=False)
fit(teacher, torch.optim.SGD(teacher.parameters(), lr=0.01), 32, args.first, lambda x: 100 + x[:, :4])
with torch.no_grad():
    fixed = teacher.eval()
fit(student, torch.optim.SGD(student.parameters(), lr=0.01), 8, args.second, lambda x: fixed(x).detach() * 0)
