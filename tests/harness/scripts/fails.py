"""Ends badly, in the way that it is told to, after a number of steps."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["raise", "exit", "kill", "segfault", "memory", "hang", "cuda"])
parser.add_argument("--after", type=int, default=0)
args = parser.parse_args()

model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def end_badly():
    if args.how == "raise":
        raise ValueError("the data of this batch is broken")
    if args.how == "exit":
        sys.exit(7)
    if args.how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if args.how == "memory":
        torch.empty(1 << 46)
    if args.how == "hang":
        time.sleep(3600)
    if args.how == "cuda":
        model.to("cuda:99")


for step in range(100_000):
    if step == args.after:
        end_badly()
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
