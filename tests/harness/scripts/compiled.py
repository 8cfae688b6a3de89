"""torch.compile of the model, or of the whole step; prints how often the graph broke."""

import argparse
import logging

import torch
import torch._dynamo
from torch import nn

logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
parser = argparse.ArgumentParser()
parser.add_argument("--fullgraph", action="store_true")
parser.add_argument("--function", action="store_true", help="compile forward and loss as one function")
parser.add_argument("--backend", default="aot_eager")
parser.add_argument("--steps", type=int, default=2000)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.inner:
            x = x + torch.relu(layer(x))
        return self.head(x)


model = Net()
optimizer = torch.optim.Adam(model.parameters())


def loss_of(x, y):
    return nn.functional.cross_entropy(model(x), y)


if args.function:
    loss_of = torch.compile(loss_of, backend=args.backend, fullgraph=args.fullgraph)
else:
    model = torch.compile(model, backend=args.backend, fullgraph=args.fullgraph)

for step in range(args.steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    if step == 2:
        counters = torch._dynamo.utils.counters
        print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()), flush=True)
