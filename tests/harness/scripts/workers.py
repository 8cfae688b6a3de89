"""Loader workers under each start method; the dataset class lives in this very file."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Parts(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        assert get_worker_info() is not None, "fetched in the main process"
        time.sleep(0.001)
        return torch.randn(64), torch.tensor(os.getpid())


def seed_worker(worker):
    torch.manual_seed(worker)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", default="fork")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    loader = DataLoader(
        Parts(640),
        batch_size=8,
        num_workers=args.workers,
        multiprocessing_context=args.context,
        persistent_workers=args.persistent,
        worker_init_fn=seed_worker,
    )
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pids = set()
    for _ in range(10):
        for x, pid in loader:
            pids.update(pid.tolist())
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    print("workers seen", len(pids))


if __name__ == "__main__":
    main()
