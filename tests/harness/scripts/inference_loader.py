"""Inference over a DataLoader: no optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
)
model.eval()
images = TensorDataset(torch.rand(9600, 3, 32, 32))
predictions = []
with torch.no_grad():
    for (batch,) in DataLoader(images, batch_size=8):
        predictions.append(model(batch).argmax(1).cpu())
print("predicted", len(torch.cat(predictions)))
