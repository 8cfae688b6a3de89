"""A script that profiles itself already, and writes the trace beside itself."""

import os

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

HERE = os.path.dirname(os.path.abspath(__file__))
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def ready(prof):
    prof.export_chrome_trace(os.path.join(HERE, "own_trace.json"))


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=2), on_trace_ready=ready
) as prof:
    for step in range(3000):
        with record_function("my_step"):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
        prof.step()
print(len(prof.key_averages().table(sort_by="cpu_time_total", row_limit=5)) > 0)

with torch.autograd.profiler.profile() as old:
    model(torch.randn(4, 64))
print("operators", len(old.key_averages()))
