"""A closure optimizer: several forwards and backwards inside one step."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-3, 3, 512).unsqueeze(1)
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, tolerance_change=0, tolerance_grad=0)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for i in range(150):
    loss = optimizer.step(closure)
print("loss", float(loss))
