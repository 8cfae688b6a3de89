"""How long `advisor analyze` takes over a big trace, from start-up to the written report, beside the least that reading
it costs and beside what other tools need.

    python tests/benchmarks/analyze_speed.py                     writes tests/benchmarks/results/analyze_speed.md
    python tests/benchmarks/analyze_speed.py --megabytes 56 --trace mine.json.gz --peers-python ~/peers/bin/python

The big trace is a real one replicated to size. Without --trace it is that of a training step recorded here, on the CPU.
Peers are run where the interpreter for them has them (pip install HolisticTraceAnalysis torch-tb-profiler).
"""

from __future__ import annotations

import argparse
import datetime
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from big_traces.peers import PEERS
from big_traces.processes import Ran, run
from big_traces.replicate import write

from advisor.harness.machine.environment import usable_cpus

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "analyze_speed.md"
HEADER = ("| | time | memory | times the floor | times ours |", "|---|---|---|---|---|")
FLOOR, OURS = "floor: gunzip, typed decode, one core", "advisor analyze --output"


def recorded(folder: Path) -> Path:
    """A trace of three training steps on this machine's CPU, with stacks and shapes."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    target = folder / "recorded.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=3),
        with_stack=True,
        record_shapes=True,
        profile_memory=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(target)),
    ) as profiler:
        for _ in range(4):
            loss = model(torch.randn(32, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    return target


def commands(trace: Path, folder: Path, peers_python: str) -> dict[str, list[str]]:
    """Name → command, of what can be run here."""
    advisor = str(Path(sys.executable).with_name("advisor"))
    found = {
        FLOOR: [sys.executable, str(HERE / "big_traces" / "floor.py"), str(trace)],
        OURS: [advisor, "analyze", str(trace), "--output", str(folder / "report")],
    }
    for peer in PEERS:
        command = [peers_python, str(HERE / "big_traces" / "peers.py"), peer]
        version = subprocess.run([*command, "--version"], capture_output=True, text=True)
        if version.returncode == 0:
            found[f"{peer} {version.stdout.strip()}"] = [*command, str(trace)]
        else:
            print(f"{peer} is not installed in {peers_python}", file=sys.stderr)
    return found


def measured(todo: dict[str, list[str]], rounds: int) -> dict[str, list[Ran]]:
    """Floor and ours in turns, `rounds` times; the peers, which take minutes, once."""
    runs: dict[str, list[Ran]] = {name: [] for name in todo}
    for number in range(rounds):
        for name, command in todo.items():
            if number and name not in (FLOOR, OURS):
                continue
            runs[name].append(run(command))
            last = runs[name][-1]
            print(f"  {name}: {last.seconds:.2f} s, {last.memory / 1e9:.2f} GB", file=sys.stderr)
            if last.status:
                print(last.output[-2000:], file=sys.stderr)
    return {name: each for name, each in runs.items() if not any(one.status for one in each)}


def rows(runs: dict[str, list[Ran]]) -> list[str]:
    """The lines of a table: medians, and ratios to the floor and to ours."""
    seconds = {name: statistics.median(one.seconds for one in each) for name, each in runs.items()}
    lines = []
    for name, each in runs.items():
        spread = f" ({min(o.seconds for o in each):.2f} – {max(o.seconds for o in each):.2f})" if len(each) > 1 else ""
        memory = max(one.memory for one in each) / 1e9
        lines.append(
            f"| {name} | {seconds[name]:.2f} s{spread} | {memory:.2f} GB | {seconds[name] / seconds[FLOOR]:.2f} | "
            f"{seconds[name] / seconds[OURS]:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trace", type=Path, help="what is replicated; default: recorded here")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[2, 56, 227, 1000], help="sizes of the JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peers-up-to", type=float, default=float("inf"), metavar="MB", help="they take minutes and gigabytes for 1 GB"
    )
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = options.trace or recorded(folder)
        lines = [
            "# `advisor analyze` on big traces",
            "",
            f"{datetime.date.today()}, Python {platform.python_version()}, {platform.machine()}, "
            f"{usable_cpus():g} cores; {source.name} replicated, gzip; whole processes; medians of {options.rounds} "
            "alternating rounds (lowest – highest), peers once; memory: the peaks of all processes added",
        ]
        for megabytes in options.megabytes:
            trace = folder / f"{megabytes:g}.pt.trace.json.gz"
            size, events = write(source, trace, megabytes)
            title = f"{size / 1e6:,.0f} MB of JSON, {events:,} events"
            print(title, file=sys.stderr)
            todo = commands(trace, folder, options.peers_python)
            if megabytes > options.peers_up_to:
                todo = {name: todo[name] for name in (FLOOR, OURS)}
            runs = measured(todo, options.rounds)
            lines += ["", f"## {title}", "", *HEADER, *rows(runs)]
            trace.unlink()
            shutil.rmtree(folder / "report", ignore_errors=True)
    print("\n".join(lines))
    options.results.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
