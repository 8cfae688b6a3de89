"""A stream without a length."""

import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for n in itertools.count():
            x = torch.full((64,), float(n % 10)) + random.random()
            yield x, n % 10


def collate(samples):
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.tensor(ys)


model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for step, (x, y) in enumerate(DataLoader(Stream(), batch_size=64, collate_fn=collate)):
    if step == 250:
        break
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
