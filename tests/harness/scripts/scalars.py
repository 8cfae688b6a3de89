"""Losses of single samples, told by tensors without dimensions, as examples of reinforcement learning have them."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(2000):
    losses = []
    for target in torch.randn(6):
        losses.append(F.smooth_l1_loss(model(torch.randn(4)), torch.tensor([target])))
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
