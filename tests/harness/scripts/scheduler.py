"""A learning-rate schedule stepped per batch and an averaged copy of the model."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel

model = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 8))
average = AveragedModel(model)
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ],
    lr=1e-3,
)
schedule = SequentialLR(
    optimizer, [LinearLR(optimizer, 0.1, total_iters=50), CosineAnnealingLR(optimizer, 350)], milestones=[50]
)
x, y = torch.randn(400, 32, 64), torch.randint(0, 8, (400, 32))
for i in range(400):
    loss = nn.functional.cross_entropy(model(x[i]), y[i])
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    schedule.step()
    average.update_parameters(model)
print("lr", schedule.get_last_lr())
