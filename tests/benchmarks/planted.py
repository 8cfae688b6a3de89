"""Whether sessions find and fix what is planted in the fixtures, and keep nothing in the clean ones.

For each planted script that a rule covers: the twin corrected by hand against the original, in alternating pairs of
whole runs, and beside it what a session with ``--accept all`` came to on its own. Wanted is at least 80 % of the twin's
speedup. For each clean script: a session that keeps nothing. Run it on a quiet machine.

    python tests/benchmarks/planted.py [names]           writes tests/benchmarks/results/planted.md
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from advisor.compare import Comparison, compare_pairs, costs
from advisor.errors import AdvisorError
from advisor.findings import Findings
from advisor.harness.layout import Options
from advisor.launch import Command, measure
from advisor.profile import profile
from advisor.run import Run
from advisor.session import Settings
from fixtures.expectations import Case, clean, cpu_flags, planted

RESULTS = Path(__file__).parent / "results" / "planted.md"
WANTED = 0.8  # of the twin's speedup
TIMED = Options(windows="timing", seed=0)


def twin_against_script(case: Case, folder: Path, pairs: int) -> Comparison:
    """How much faster the twin is: alternating runs, timed as a session times its own."""
    found = []
    for number in range(1, pairs + 1):
        runs: list[Run] = []
        for name, script in (("before", case.script), ("after", case.twin)):
            command = Command(script=str(script), python=sys.executable, cwd=str(case.folder))
            runs.append(measure(command, folder / f"{case.name}-twin" / f"{number}-{name}", TIMED, timeout=600))
        found.append(costs(runs[0].record, runs[1].record))
    return compare_pairs(found)


def session(case: Case, folder: Path, budget: float) -> Findings:
    """The document of a session on the script that accepts every fix."""
    settings = Settings(
        script=str(case.script), python=sys.executable, cwd=str(case.folder), accept="all", budget=budget
    )
    return profile(settings, folder / case.name).document


def planted_row(case: Case, folder: Path, pairs: int, budget: float) -> str:
    twin = twin_against_script(case, folder, pairs)
    document = session(case, folder, budget)
    outcome = document.outcome
    rule = ", ".join(each.rule for each in case.found)
    first = f"| {case.name} | {rule} | {twin.speedup:.2f} ({twin.low:.2f}–{twin.high:.2f}) |"
    if outcome is None:
        return f"{first} – | – | nothing was tried: {document.verdict} |"
    whole = outcome.speedup
    share = whole.likely / twin.speedup
    kept = ", ".join(outcome.kept) or "nothing"
    good = "yes" if share >= WANTED and set(outcome.kept) & {each.rule for each in case.found} else "NO"
    return f"{first} {whole.likely:.2f} ({whole.low:.2f}–{whole.high:.2f}) | {share:.0%} | {good}: kept {kept} |"


def clean_row(case: Case, folder: Path, budget: float) -> str:
    document = session(case, folder, budget)
    outcome = document.outcome
    trials = outcome.trials if outcome is not None else []
    tried = ", ".join(f"{each.rule} ({each.status})" for each in trials) or "nothing"
    kept = ", ".join(outcome.kept) if outcome is not None and outcome.kept else "nothing"
    return f"| {case.name} | {tried} | {kept} | {'yes' if kept == 'nothing' else 'NO'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases to run (default: all that a rule covers, and the clean ones)")
    parser.add_argument("--pairs", type=int, default=3, help="alternating pairs of twin and script")
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds for each session")
    parser.add_argument("--keep", type=Path, help="folder for the run folders (default: they are removed)")
    args = parser.parse_args()

    def wanted(cases: list[Case]) -> list[Case]:
        return [case for case in cases if not args.names or case.name in args.names]

    lines = [
        "# Planted bottlenecks and clean scripts",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores. "
        f"Speedups with 95 % intervals; {args.pairs} pairs for the twins.",
        "",
        "| planted | rule | twin | session | of the twin's | at least 80 %, by that rule |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)

    def add(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        for case in wanted(planted()):
            if case.waits_for or case.cannot_run(cpu_flags()):
                continue
            try:
                add(planted_row(case, folder, args.pairs, args.budget))
            except AdvisorError as error:
                add(f"| {case.name} | {', '.join(e.rule for e in case.found)} | – | – | – | NO: {error} |")
        for line in ("", "| clean | tried | kept | as it should be |", "|---|---|---|---|"):
            add(line)
        for case in wanted(clean()):
            if case.cannot_run(cpu_flags()):
                continue
            try:
                add(clean_row(case, folder, args.budget))
            except AdvisorError as error:
                add(f"| {case.name} | – | – | NO: {error} |")
    add("")
    for case in wanted(planted()):
        if case.waits_for:
            add(f"- {case.name} waits for its rule, {case.waits_for}.")
    if not args.names:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
