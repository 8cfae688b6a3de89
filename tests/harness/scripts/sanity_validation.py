"""Two batches of validation before any training, and a whole validation after each epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_set = TensorDataset(torch.randn(3200, 1, 28, 28), torch.randint(0, 10, (3200,)))
valid_set = TensorDataset(torch.randn(640, 1, 28, 28), torch.randint(0, 10, (640,)))
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=64)


@torch.inference_mode()
def validate(limit=None):
    model.eval()
    for i, (x, y) in enumerate(valid_loader):
        if i == limit:
            break
        model(x).argmax(1).eq(y).float().mean().item()
    model.train()


validate(limit=2)
for epoch in range(3):
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    validate()
print("trained")
