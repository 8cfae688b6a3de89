"""A main() with argparse; prints its own clock at every step."""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SlowSquares(Dataset):
    """Every sample takes a while to come, as from a network drive."""

    def __init__(self, length, delay):
        self.length = length
        self.delay = delay

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.delay)
        x = torch.linspace(0, 1, 128) * (index % 7)
        return x, (x**2).sum().unsqueeze(0)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(f"clock {time.perf_counter():.6f} epoch {epoch} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--delay", type=float, default=0.0005)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()

    device = torch.device("cpu")
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 1)).to(device)
    loader = DataLoader(SlowSquares(args.samples, args.delay), batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, loader, optimizer, epoch)
    if args.save:
        torch.save(model.state_dict(), "squares.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
