"""Training without an optimizer: parameters are moved by hand, as in PyTorch's word_language_model."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def evaluate():
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 32))
    model.train()


for step in range(3000):
    loss = model(torch.randn(16, 32)).square().mean()
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.01)
    time.sleep(0.01)
    if step % 50 == 49:
        evaluate()
