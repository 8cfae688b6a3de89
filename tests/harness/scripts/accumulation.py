"""Gradient accumulation: four batches to one optimizer step, with the gradient clipped."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(8000, 64), torch.randn(8000, 1)), batch_size=8)

optimizer.zero_grad()
for index, (x, y) in enumerate(loader):
    loss = nn.functional.mse_loss(model(x), y) / ACCUMULATE
    loss.backward()
    if (index + 1) % ACCUMULATE == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print("done", index + 1)
