"""How often a script is told apart from itself, from real runs of it.

A small training script is run again and again, each time until its timing window is full. What the runs took is stored,
and sessions are made of them: A B, B A, A B …, looked at after the third pair and each further one, as the loop does.
As consecutive runs keep what drifts on the machine, so do the windows of consecutive runs; draws in random order add
sessions that are not the same few runs over and over.

    python tests/benchmarks/compare_with_itself.py --runs 48      writes tests/benchmarks/results/compare_with_itself.*
    python tests/benchmarks/compare_with_itself.py --again        the table anew from the stored runs
    python tests/benchmarks/compare_with_itself.py --simulate 2000     no real runs; writes compare_simulated.md
"""

from __future__ import annotations

import argparse
import datetime
import itertools
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

import numpy as np

from advisor import compare
from advisor.compare import Comparison, compare_pairs, enough, verdict
from advisor.harness.layout import Options
from advisor.improve.trial import MOST_PAIRS
from advisor.launch import Command, measure

RESULTS = Path(__file__).parent / "results" / "compare_with_itself.json"
SIMULATED = RESULTS.with_name("compare_simulated.md")
DRAWS = 2000
MIN_GAINS = (0.01, 0.02, 0.05)
SPREADS = (0.003, 0.01, 0.03, 0.08)

Runs = np.ndarray

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

    The order is the loop's, A B, B A, A B …; ``gain`` makes B's runs that much faster.
    """
    pairs: list[tuple[float, float]] = []
    for one, other in zip(costs[::2], costs[1::2], strict=False):
        before, after = (other, one) if len(pairs) % 2 else (one, other)
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


# How runs of one script may differ: logarithms of their costs, sessions × runs in the order they are made.


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """Normal."""
    return random.normal(size=shape)


def heavy_tails(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """Heavy tails (Student's t with 3 degrees of freedom)."""
    return random.standard_t(3, size=shape) / math.sqrt(3)


def spikes(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """One run in ten is disturbed by something else on the machine."""
    return random.normal(size=shape) / 2 + (random.random(shape) < 0.1) * random.exponential(3, size=shape)


def two_speeds(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """A processor that sometimes boosts for a whole run."""
    return random.normal(size=shape) / 4 + 2 * (random.random(shape) < 0.3)


def slow_drift(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """A machine whose speed wanders from run to run."""
    return random.normal(size=shape) / math.sqrt(2) + np.cumsum(random.normal(size=shape), axis=1) / 3


def warming_up(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """Every run a little slower than the one before: by a tenth of what runs differ at random."""
    return random.normal(size=shape) + np.arange(shape[1]) / 10


KINDS = (normal, heavy_tails, spikes, two_speeds, slow_drift, warming_up)


def simulate(number: int) -> list[str]:
    """The shares of wrong answers in so many simulated sessions of each kind: the worst over spreads and min gains.

    Beside the confidence of each look that is used, what it would be with 95 % at each.
    """
    lines = [
        "| runs | told apart | told apart, with 95 % a look | kept |",
        "|---|---|---|---|",
    ]
    used = compare.LOOK_CONFIDENCE
    for kind in KINDS:
        worst = {"kept": 0.0, used: 0.0, 0.95: 0.0}
        for spread, min_gain in itertools.product(SPREADS, MIN_GAINS):
            costs = np.exp(kind(np.random.default_rng(0), (number, 2 * MOST_PAIRS)) * spread).tolist()
            for confidence in (used, 0.95):
                compare.LOOK_CONFIDENCE = confidence
                results = [session(each, min_gain) for each in costs]
                told = statistics.fmean(each.different for each in results)
                worst[confidence] = max(worst[confidence], told)
                if confidence == used:
                    kept = statistics.fmean(verdict(each, min_gain) == "kept" for each in results)
                    worst["kept"] = max(worst["kept"], kept)
        compare.LOOK_CONFIDENCE = used
        name = (kind.__doc__ or kind.__name__).split(":")[0].strip().rstrip(".")
        lines.append(f"| {name} | {worst[used]:.1%} | {worst[0.95]:.1%} | {worst['kept']:.1%} |")
        print(lines[-1], flush=True)
    return [
        "# A script beside itself, simulated",
        "",
        f"Share of {number} simulated sessions of up to {MOST_PAIRS} pairs; the worst of runs that differ by "
        f"{', '.join(f'{spread:.1%}' for spread in SPREADS)} among themselves and of min gains of "
        f"{', '.join(f'{gain:.0%}' for gain in MIN_GAINS)}. "
        "The promise: told apart in at most 5 %, kept in at most 2.5 %.",
        "",
        *lines,
    ]


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
    parser.add_argument("--simulate", type=int, metavar="SESSIONS", help="simulate instead: this measures nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.simulate:
        SIMULATED.write_text("\n".join(simulate(arguments.simulate)) + "\n")
        return
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
