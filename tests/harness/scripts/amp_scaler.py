"""autocast and GradScaler, the usual four lines."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device)
x = torch.randn(32_000, 128, device=device)
y = x[:, :10].argmax(1)
for step in range(1000):
    part = slice(step * 32, step * 32 + 32)
    optimizer.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 100 == 0:
        print(f"loss {loss.item():.6f}")
