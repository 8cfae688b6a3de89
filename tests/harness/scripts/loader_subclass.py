"""DataLoader subclasses: one that prefetches in its own __iter__, as GitHub is full of, inside a wrapper that moves batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AheadLoader(DataLoader):
    def __iter__(self):
        batches = super().__iter__()
        ahead = next(batches, None)
        while ahead is not None:
            current, ahead = ahead, next(batches, None)
            yield current


class DeviceLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield tuple(t.to(self.device) for t in batch)


data = TensorDataset(torch.randn(4800, 64), torch.randn(4800, 4))
loader = DeviceLoader(AheadLoader(data, batch_size=16, shuffle=True), torch.device("cpu"))
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("batches", len(loader))
