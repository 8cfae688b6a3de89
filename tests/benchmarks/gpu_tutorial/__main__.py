"""The command: ``python -m gpu_tutorial``, with tests/benchmarks on the path; ``make gpu`` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from advisor.amounts import Duration
from advisor.errors import AdvisorError
from advisor.harness.layout import Options

from . import parts
from .parts import REPO, Asked, Parts
from .small_runs import record
from .table import render

RESULTS = REPO / "tests" / "benchmarks" / "results" / "gpu_tutorial.md"
PARTS = ("loop", "hand", "duel", "table")


@click.command()
@click.option(
    "--part", "chosen", type=click.Choice(("all", *PARTS)), default="all", help="What to do; each part is stored."
)
@click.option("--budget", type=Duration(), default="60m", help="Time for each part: 90s, 20m, 1h.")
@click.option("--resume", is_flag=True, help="Go on with the loop that is there, for another budget.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=REPO / "advisor_runs" / "gpu_tutorial",
    help="For runs and parts.",
)
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the table goes.")
@click.option("--record", "recorded", type=click.Path(path_type=Path), help="Put small copies of the runs there.")
@click.option("--python", default=sys.executable, help="The interpreter that has torch, for the scripts.")
@click.option("--rounds", type=int, default=3, help="How often each stage by hand is run, as far as time allows.")
@click.option("--seconds", type=float, default=Options().min_seconds, help="Least length of a run's timing window.")
@click.option("--image-size", type=int, default=224)
@click.option("--images", type=int, default=10_000)
@click.option("--epochs", type=int, default=100, help="Plenty: every run is ended once it has measured.")
@click.option("--batches", type=int, nargs=3, default=(32, 512, 1024), help="At first, from stage 3, from stage 5.")
@click.option("--workers", type=int, help="By hand; as many as there are CPUs, at most 16, unless given.")
@click.option("--anywhere", is_flag=True, help="Without a GPU too: to try this program, not to measure anything.")
def main(
    chosen: str,
    budget: float,
    resume: bool,
    folder: Path,
    results: Path,
    recorded: Path | None,
    python: str,
    seconds: float,
    anywhere: bool,
    **sizes: object,
) -> None:
    """Measure the tutorial's training on a GPU: the advisor's loop beside what people do by hand; write the table."""
    wanted = PARTS if chosen == "all" else (chosen,)
    if wanted != ("table",) and not anywhere and not _has_cuda(python):
        click.echo("This benchmark needs a CUDA GPU, and torch finds none here.", err=True)
        sys.exit(2)
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(min_seconds=seconds)
    asked = Asked(folder.resolve(), budget, python, options=options, say=_say, **sizes)  # type: ignore[arg-type]
    status = 0
    for part in wanted:
        try:
            if part == "loop":
                parts.loop(asked, resume)
            elif part == "hand":
                parts.hand(asked)
            elif part == "duel":
                parts.duel(asked)
        except AdvisorError as error:  # what the others measure still counts
            _say(f"{part}: {error}\n{error.detail}".rstrip())
            status = 1
    found = Parts.read(folder)
    for name, run in _runs(found) if recorded is not None else ():
        for note in record(folder / run, recorded / name):
            _say(note)
    if "table" in wanted:
        results.write_text(render(found))
        _say(f"The table: {results}")
    sys.exit(status)


def _has_cuda(python: str) -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def _runs(found: Parts) -> list[tuple[str, str]]:
    """Names for small copies, and the run folders that they are made of."""
    named = []
    for kind, part in (("loop", found.loop), ("hand", found.hand)):
        if part is not None:
            named += [(f"{kind}-{number}", run) for number, run in enumerate(part.runs)]
    return named


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
