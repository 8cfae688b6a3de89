"""What order and copies do to a compiled model: DDP around it or in it, and averages (EMA) made of it or of the model.

`python tests/benchmarks/compile_and_ddp.py` runs each in turn, A B A B, and writes results/compile_and_ddp.md. Two
processes exchange gradients over the loopback interface, which is as fast as memory; for a network's pace limit it
(`tc qdisc add dev lo root tbf rate 6gbit burst 4mb limit 40mb`) and say so with --network.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "compile_and_ddp.md"
STEPS, SKIPPED, ROUNDS = 12, 4, 2
ORDERS = ("no compile", "compile(DDP(model))", "DDP(compile(model))")
COPIES = ("AveragedModel(model)", "AveragedModel(compiled)", "deepcopy(compiled)")


def exchanging(order: str) -> None:
    """Train a stack of linear layers, 113 MB of gradients, and print what rank 0 measured."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [each for _ in range(12) for each in (nn.Linear(1536, 1536), nn.GELU())]
    net: Any = nn.Sequential(*layers, nn.Linear(1536, 10))
    wrap = nn.parallel.DistributedDataParallel
    wraps: dict[str, Callable[[], Any]] = {
        "no compile": lambda: wrap(net),
        "compile(DDP(model))": lambda: torch.compile(wrap(net)),
        "DDP(compile(model))": lambda: wrap(torch.compile(net)),
    }
    model = wraps[order]()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    steps, backwards = [], []
    for _ in range(STEPS):
        x = torch.randn(64, 1536)
        began = time.perf_counter()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        middle = time.perf_counter()
        loss.backward()
        backwards.append(time.perf_counter() - middle)
        optimizer.step()
        steps.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(json.dumps([statistics.median(each[SKIPPED:]) for each in (steps, backwards)]))
    dist.destroy_process_group()


def averaging(kind: str) -> None:
    """Train a small CNN with an average of its weights, evaluated now and then; print a step's seconds, and graphs."""
    import copy

    import torch
    from torch import nn
    from torch._dynamo.utils import counters
    from torch.optim.swa_utils import AveragedModel

    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )
    model: Any = torch.compile(net)
    made: dict[str, Callable[[], Any]] = {
        "AveragedModel(model)": lambda: AveragedModel(net),
        "AveragedModel(compiled)": lambda: AveragedModel(model),
        "deepcopy(compiled)": lambda: copy.deepcopy(model),
    }
    average = made[kind]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps = []
    for number in range(5 * STEPS):
        began = time.perf_counter()
        loss = model.train()(torch.randn(8, 3, 32, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        steps.append(time.perf_counter() - began)
        if number % 10 == 9:
            with torch.no_grad():
                average.eval()(torch.randn(8, 3, 32, 32))
    print(json.dumps([statistics.median(steps[5:]), counters["stats"]["unique_graphs"]]))


def measured(*words: str) -> list[float]:
    """What the last line of such a run says."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    figures = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("["))
    return list(json.loads(figures))


def main() -> None:
    """Measure, and write the tables."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="the loopback interface")
    parser.add_argument("one", nargs="*", help="kind and name of a single run, for the processes that this starts")
    options = parser.parse_args()
    if options.one:
        {"exchanging": exchanging, "averaging": averaging}[options.one[0]](options.one[1])
        return
    launch = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    exchanged: dict[str, list[list[float]]] = {each: [] for each in ORDERS}
    averaged: dict[str, list[list[float]]] = {each: [] for each in COPIES}
    for _ in range(ROUNDS):
        for order in ORDERS:
            exchanged[order].append(measured(*launch, __file__, "exchanging", order))
        for kind in COPIES:
            averaged[kind].append(measured(__file__, "averaging", kind))
    lines = [
        "# A compiled model, DDP and averages of its weights",
        "",
        f"{datetime.date.today()}; torch {torch.__version__}, two processes, gloo over {options.network}; medians of "
        f"{STEPS - SKIPPED} steps, each of {ROUNDS} runs in turn.",
        "",
        "DDP's optimizer of graphs (torch/_dynamo/convert_frame.py) is asked for while DDP's forward runs: it cuts the "
        "graph into buckets in either order, and gradients travel while the backward goes on.",
        "",
        "| order | step (ms) | backward (ms) |",
        "| --- | --- | --- |",
        *(
            f"| {order} | {', '.join(f'{each[0] * 1e3:.0f}' for each in rows)} | "
            f"{', '.join(f'{each[1] * 1e3:.0f}' for each in rows)} |"
            for order, rows in exchanged.items()
        ),
        "",
        "An average made of the compiled model is compiled, too, where it is called: a graph more, and no slower step.",
        "",
        "| average | training step (ms) | graphs |",
        "| --- | --- | --- |",
        *(
            f"| {kind} | {', '.join(f'{each[0] * 1e3:.2f}' for each in rows)} | {rows[0][1]:.0f} |"
            for kind, rows in averaged.items()
        ),
        "",
        "Not measured: `SyncBatchNorm`, which takes tensors of a GPU only.",
        "",
    ]
    RESULTS.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
