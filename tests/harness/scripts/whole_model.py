"""Saves and loads whole models, copies them, and shares their weights: whatever hangs on a module travels with it."""

import copy
import os

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x):
        return self.layers(x)


model = Net()
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
known = [Net, nn.Sequential, nn.Linear, nn.ReLU]
for step in range(500):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save(model, os.path.join(HERE, "head.pt"))
        with torch.serialization.safe_globals(known):
            torch.load(os.path.join(HERE, "head.pt"), weights_only=True)
        average = copy.deepcopy(model)
