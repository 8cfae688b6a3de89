"""The command: ``python -m tests.accuracy``, from the repository's root; ``make accuracy`` runs it."""

from __future__ import annotations

import datetime
import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click

from advisor.amounts import Duration
from advisor.rulebook import load_rules
from fixtures.expectations import Case, cpu_flags, everything

from .child import Answer, Measurement
from .peers import PEERS, Ask, Heard, version_of
from .results import CaseResult
from .runs import REPO, Runner, versions
from .table import Page, as_json, render

RESULTS = REPO / "tests" / "benchmarks" / "results" / "accuracy.md"
PEERS_PYTHON = REPO / ".venv-peers" / "bin" / "python"


# What these rules speak of lies between the steps, and is no part of their time.
_BESIDE_THE_STEP = ("evaluation-heavy", "work-between-epochs", "compile-recompiles")


@dataclass(frozen=True)
class Wanted:
    """What is done for each case. ``versions`` are those of the peers that can run, by name, ``pythons`` theirs."""

    runner: Runner
    gains: bool
    versions: dict[str, str]
    pythons: dict[str, str]

    def case(self, case: Case) -> CaseResult:
        """Everything that is wanted of one case."""
        answer = self.runner.findings(case)
        # Of a trace only those tools know something that read one.
        asked = [peer for peer in PEERS if self.versions.get(peer.name) and (peer.reads_trace or not case.trace)]
        heard = {peer.name: self._heard(case, peer.name, answer) for peer in asked}
        return CaseResult(case, answer, heard, self._measured(case, answer) if self.gains else ())

    def _heard(self, case: Case, name: str, answer: Answer) -> Heard:
        peer = next(peer for peer in PEERS if peer.name == name)

        def ask() -> Heard:
            trace = self.runner.place(case) / "findings" / answer.trace if answer.trace else None
            copy = self.runner.copy(case, f"{peer.package}/script")
            return peer.ask(Ask(case, copy, self.pythons[name], trace, self.runner))

        # What it says of another trace is another matter.
        key = [self.versions[name], *([answer.trace] if peer.reads_trace else [])]
        return self.runner.kept(case, f"peer-{peer.package}", Heard, ask, *key)

    def _measured(self, case: Case, answer: Answer) -> tuple[Measurement, ...]:
        """Expected findings' predictions beside what their fixes were measured to bring, or the twin where they advise.

        What the twin gains is one finding's gain where there is but one thing to correct.
        """
        expected = {each.rule for each in case.found}
        found = [each for each in answer.proposals if each.rule in expected and each.likely > 1]
        tried = [(each, each.change) for each in found if each.runs]
        if len(case.found) == 1 and not tried and case.twin.is_file():
            tried = [(each, None) for each in found if each.fix == "advice"][:1]
        return tuple(
            Measurement(each.rule, each.low, each.likely, each.high, timed.speedup, timed.low, timed.high, timed.pairs)
            for each, fix in tried
            if (timed := self.runner.gain(case, fix, each.rule in _BESIDE_THE_STEP).timed) is not None
        )


@click.command()
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="Only the cases that are marked as quick.")
@click.option("--short", is_flag=True, help="Windows as short as the tests': minutes less, figures less certain.")
@click.option("--gains", is_flag=True, help="Measure what the fixes bring, too: minutes a case, on a quiet machine.")
@click.option("--stored", is_flag=True, help="Of gains only those that were measured before.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Cases at once; they take each other's cores.")
@click.option("--json", "as_data", is_flag=True, help="Print the figures as JSON instead of the table.")
@click.option("--timeout", type=Duration(), default="10m", help="Time for one run of a script.")
@click.option("--peers/--no-peers", default=True, help="Ask other tools as well.")
@click.option(
    "--peers-python",
    type=click.Path(path_type=Path),
    default=PEERS_PYTHON,
    help="The interpreter that has them. [default: .venv-peers, which `make accuracy` makes]",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=REPO / "advisor_runs" / "accuracy",
    help="Where runs and results are kept; what is there is not done again.",
)
@click.option("--results", type=click.Path(path_type=Path), help="Where the table goes.")
def main(
    names: tuple[str, ...],
    quick: bool,
    short: bool,
    gains: bool,
    stored: bool,
    jobs: int,
    as_data: bool,
    timeout: float,
    peers: bool,
    peers_python: Path,
    folder: Path,
    results: Path | None,
) -> None:
    """Profile the labelled scripts (or those of these NAMES), diagnose the traces, judge what is said, write the table.

    The table of a part is printed only, unless --results says where it goes: of NAMES or --quick, and of what was
    through when it was interrupted. The same command then goes on from there.
    """
    chosen = _chosen(names, quick)
    flags = cpu_flags()
    out = {case.name: why for case in chosen if (why := case.cannot_run(flags))}
    runner = Runner(folder.resolve(), short, timeout, stored)
    pythons = {peer.name: sys.executable if peer.name == "torch-tb-profiler" else str(peers_python) for peer in PEERS}
    known = {peer.name: version_of(pythons[peer.name], peer.package) for peer in PEERS} if peers else {}
    wanted = Wanted(runner, gains or stored, known, pythons)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, which a shell's background has not
    can = [case for case in chosen if case.name not in out]
    found = _all(can, wanted, jobs)
    interrupted = len(found) < len(can)
    page = Page(
        results=found,
        out=out,
        date=str(datetime.date.today()),
        versions=versions(),
        peers=known,
        short=short,
        gains=gains or stored,
        known=frozenset(rule.id for rule in load_rules()),
        part=", ".join(
            [*names, *(["quick ones"] if quick else []), *([f"interrupted after {len(found)}"] if interrupted else [])]
        ),
    )
    click.echo(json.dumps(as_json(page), indent=2) if as_data else render(page))
    place = results or (None if page.part else RESULTS)
    if place is not None:
        place.write_text(render(page))
        click.echo(f"The table: {place}", err=True)
    if interrupted:
        click.echo("Interrupted: the same command goes on from here.", err=True)
        sys.exit(130)


def _chosen(names: tuple[str, ...], quick: bool) -> list[Case]:
    known = everything()
    unknown = sorted({*names} - {case.name for case in known})
    if unknown:
        raise click.UsageError(f"there is no case {', '.join(unknown)}")
    return [case for case in known if (not names or case.name in names) and (case.quick or not quick)]


def _all(cases: list[Case], wanted: Wanted, jobs: int) -> list[CaseResult]:
    """Their results, in their order; after Ctrl-C, which ends what is running, of those that are through."""
    lock, number = threading.Lock(), count(1)

    def one(case: Case) -> CaseResult:
        result = wanted.case(case)
        with lock:
            click.echo(f"{next(number)}/{len(cases)} {_in_a_line(result)}", err=True)
        return result

    pool = ThreadPoolExecutor(jobs)
    futures = [pool.submit(one, case) for case in cases]
    try:
        for future in futures:
            future.result()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        wanted.runner.interrupt()
    finally:
        pool.shutdown(cancel_futures=True)
    through = [each for each in futures if not each.cancelled() and each.exception() is None]
    return [each.result() for each in through]


def _in_a_line(result: CaseResult) -> str:
    if result.answer.error:
        return f"{result.case.name}: {result.answer.error.splitlines()[0][:200]}"
    judged = result.judgement
    parts = [
        ("found", [expected.rule for expected, _ in judged.hits]),
        ("MISSED", [expected.rule for expected in judged.missed]),
        ("FALSE", [each.rule for each in judged.false]),
        ("beside", [each.rule for each in judged.beside]),
        ("DOES NOT RUN", [each.rule for each in result.fixes if not each.runs]),
    ]
    text = "; ".join(f"{name} {', '.join(rules)}" for name, rules in parts if rules)
    return f"{result.case.name}: {text or 'nothing, as it should be'}"


if __name__ == "__main__":
    main()
