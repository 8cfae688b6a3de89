"""How often a script is told apart from itself, from real runs of it.

A small training script is run again and again, each time until its timing window is full. What the runs took is stored,
and sessions are made of them: A B A B …, looked at after the third pair and each further one, as the loop does. As
consecutive runs keep what drifts on the machine, so do the windows of consecutive runs; draws in random order add
sessions that are not the same few runs over and over.

    python tests/benchmarks/compare_with_itself.py --runs 48      writes tests/benchmarks/results/compare_with_itself.*
    python tests/benchmarks/compare_with_itself.py --again        the table anew from the stored runs
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from advisor import compare
from advisor.compare import Comparison, compare_pairs, enough, verdict
from advisor.harness.layout import Options
from advisor.launch import Command, measure

RESULTS = Path(__file__).parent / "results" / "compare_with_itself.json"
MOST_PAIRS = 8
DRAWS = 2000
MIN_GAINS = (0.01, 0.02, 0.05)

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10000):
    for images, labels in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""


def session(costs: Sequence[float], min_gain: float, gain: float = 1.0) -> Comparison:
    """What the loop does with runs in alternation: look after three pairs, and after each more until it is enough.

    ``gain`` makes every second run, B's, that much faster.
    """
    pairs: list[tuple[float, float]] = []
    for before, after in zip(costs[::2], costs[1::2], strict=False):
        pairs.append((before, after / gain))
        if len(pairs) >= compare.LEAST_PAIRS and enough(compare_pairs(pairs), min_gain):
            break
    return compare_pairs(pairs)


def sessions(steps: Sequence[float], min_gain: float) -> list[Comparison]:
    """A session from every window of consecutive runs that holds the most pairs there can be."""
    length = 2 * MOST_PAIRS
    return [session(steps[start : start + length], min_gain) for start in range(len(steps) - length + 1)]


def drawn_sessions(steps: Sequence[float], min_gain: float) -> list[Comparison]:
    """Sessions of runs drawn in random order, none twice in one session."""
    draw = random.Random(0)
    return [session(draw.sample(list(steps), 2 * MOST_PAIRS), min_gain) for _ in range(DRAWS)]


def record(script: Path, runs: int, options: Options, python: str = sys.executable) -> list[float]:
    """Mean seconds per step of so many runs, one after the other."""
    steps: list[float] = []
    command = Command(str(script), python=python, cwd=str(script.parent))
    for number in range(1, runs + 1):
        run = measure(command, script.parent / "runs" / str(number), options)
        steps.append(compare.cost(run.record).step_s)
        print(f"run {number} of {runs}: {steps[-1] * 1e3:.2f} ms per step", flush=True)
    return steps


def table(steps: Sequence[float]) -> list[str]:
    lines = [
        "| sessions | min gain | number | no difference told | kept | told slower | mean pairs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, make in (("consecutive runs", sessions), ("runs in random order", drawn_sessions)):
        for min_gain in MIN_GAINS:
            results = make(steps, min_gain)
            if not results:
                continue
            shares = [
                statistics.fmean(test)
                for test in (
                    [not each.different for each in results],
                    [verdict(each, min_gain) == "kept" for each in results],
                    [each.high < 1 for each in results],
                )
            ]
            pairs = statistics.fmean(each.pairs for each in results)
            told = " | ".join(f"{share:.1%}" for share in shares)
            lines.append(f"| {name} | {min_gain:.0%} | {len(results)} | {told} | {pairs:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each is timed (5 is what sessions do)")
    parser.add_argument("--again", action="store_true", help="make the table from the stored runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.again:
        import torch

        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(SCRIPT)
            options = Options(windows="timing", seed=0, min_seconds=arguments.seconds)
            steps = record(script, arguments.runs, options)
        facts = {
            "date": str(datetime.date.today()),
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "load_at_end": round(os.getloadavg()[0], 2),
            "seconds_timed": arguments.seconds,
            "step_s": steps,
        }
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        arguments.results.write_text(json.dumps(facts, indent=1) + "\n")
    facts = json.loads(arguments.results.read_text())
    steps = facts["step_s"]
    spread = statistics.stdev(math.log(each) for each in steps)
    lines = [
        "# A script beside itself",
        "",
        f"{facts['date']}, torch {facts['torch']}, {facts['machine']}; {len(steps)} runs, each timed for at least "
        f"{facts['seconds_timed']:g} s; {statistics.fmean(steps) * 1e3:.2f} ms per step, {spread:.1%} from run to run "
        "(standard deviation); up to "
        f"{MOST_PAIRS} pairs a session",
        "",
        *table(steps),
    ]
    arguments.results.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
