"""torch.jit.script reads the source of what it compiles; the result is saved."""

import os
import warnings
from typing import List

warnings.filterwarnings("ignore", category=DeprecationWarning)

import torch
from torch import nn


@torch.jit.script
def clipped_sum(parts: List[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part.clamp(-1.0, 1.0)
    return total


class Recurrent(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(96, 32)

    @torch.jit.script_method
    def forward(self, x):
        state = torch.zeros(x.size(1), 32)
        for i in range(x.size(0)):
            state = torch.tanh(self.cell(torch.cat([x[i], state], 1)))
        return state


model = Recurrent()
head = torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for step in range(250):
    optimizer.zero_grad()
    out = head(model(torch.randn(8, 16, 64)))
    clipped_sum([out, -out * 0.5]).square().mean().backward()
    optimizer.step()
torch.jit.save(head, os.path.join(os.path.dirname(os.path.abspath(__file__)), "head.pt"))
