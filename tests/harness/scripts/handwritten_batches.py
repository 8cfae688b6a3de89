"""No DataLoader: random windows from a file of tokens, a warm-up by hand, globals changed on the command line."""

import math
import os
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

block_size = 64
batch_size = 8
width = 64
heads = 4
max_iters = 250
learning_rate = 1e-3
warmup_iters = 20

for argument in sys.argv[1:]:  # --max_iters=10
    key, value = argument.lstrip("-").split("=")
    globals()[key] = type(globals()[key])(value)

path = os.path.join(tempfile.mkdtemp(), "train.bin")
np.random.default_rng(0).integers(0, 96, 100_000).astype(np.uint16).tofile(path)


def get_batch():
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(c, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(96, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(width, 96)

    def forward(self, x, targets=None):
        logits = self.head(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1]))))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
iteration = 0
x, y = get_batch()
while True:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1.0, (iteration + 1) / warmup_iters)
    logits, loss = model(x, y)
    x, y = get_batch()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iteration % 50 == 0:
        print(f"iter {iteration}: loss {loss.item():.4f} ({math.exp(loss.item()):.1f})")
    iteration += 1
    if iteration >= max_iters:
        break
