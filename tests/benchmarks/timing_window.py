"""How much the harness disturbs the window in which it times the script.

One process, one training loop. Blocks of steps alternate between "hooks on" (the loop exactly as it is in the timing
window: loader clocks, the optimizer's post hook, the boundary) and "hooks off" (everything of ours removed). What is
printed is the ratio of the two step times, block pair by block pair; the promise is within 3 %.

    python tests/benchmarks/timing_window.py            writes tests/benchmarks/results/timing_window.md
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from advisor.harness.layout import Options, RunRecord
from advisor.harness.machine.openblas import OpenBlas
from advisor.harness.status import StatusFile
from advisor.harness.windows import Windows

RESULTS = Path(__file__).parent / "results" / "timing_window.md"
STEPS = 20  # per block


class Loop:
    """A small convolutional network on random images; `width` sets the step time."""

    def __init__(self, width: int) -> None:
        images, labels = torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,))
        self.loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
        self.model = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 10),
        )
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._batches = iter(self.loader)

    def run(self, steps: int) -> float:
        """Mean seconds per step."""
        began = time.perf_counter()
        for _ in range(steps):
            try:
                images, labels = next(self._batches)
            except StopIteration:
                self._batches = iter(self.loader)
                images, labels = next(self._batches)
            self.optimizer.zero_grad()
            self.loss(self.model(images), labels).backward()
            self.optimizer.step()
        return (time.perf_counter() - began) / steps


def measure(width: int, pairs: int) -> tuple[float, list[float]]:
    """(bare seconds per step, ratio of each pair: with our hooks over without)."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(run_dir=folder, min_seconds=1e9, max_seconds=1e9, settle_max_steps=10)
        windows = Windows(torch, options, RunRecord(started=time.time()), StatusFile(folder), OpenBlas())
        windows.loaders.install()
        windows.models.install()
        windows.sites.on()
        windows.inert.install()
        loop = Loop(width)

        def stepped(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            windows.optimizer_step(optimizer)

        handle = register_optimizer_step_post_hook(stepped)
        while windows.phase != "timing":
            loop.run(1)
        bare, ratios = [], []
        for _ in range(pairs):
            with_us = loop.run(STEPS)
            handle.remove()
            for patch in windows.loaders.patches:
                patch.off()
            loop._batches = iter(loop.loader)
            without = loop.run(STEPS)
            for patch in windows.loaders.patches:
                patch.on()
            handle = register_optimizer_step_post_hook(stepped)
            loop._batches = iter(loop.loader)
            bare.append(without)
            ratios.append(with_us / without)
        handle.remove()
    return statistics.median(bare), ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    lines = [
        "# The timing window's step beside the bare one",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads; "
        f"{arguments.pairs} alternating pairs of {STEPS} steps",
        "",
        "| bare step, median | ratio on/off, median | quartiles |",
        "|---|---|---|",
    ]
    for width in (4, 16, 48):
        bare, ratios = measure(width, arguments.pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {bare * 1e3:.1f} ms | {middle:.4f} | {low:.4f} – {high:.4f} |")
        print(lines[-1], flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
