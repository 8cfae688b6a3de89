"""Inference without a DataLoader: one request after the other, each a few forwards of the same model."""

import torch
from torch import nn

encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=256, batch_first=True), num_layers=2
)
head = nn.Linear(64, 100)
model = nn.Sequential(encoder, head).eval()

with torch.inference_mode():
    for request in range(3000):
        prompt = torch.randn(1, 16 + request % 3, 64)
        scores = model(prompt)
        answer = scores[0, -1].argmax().item()
print("last answer", answer)
