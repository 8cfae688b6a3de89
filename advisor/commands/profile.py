"""``advisor profile``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.amounts import Duration, Share
from advisor.commands.printing import SESSIONS, console, put_back, show
from advisor.commands.rules import rules_option
from advisor.errors import FAIL_ON, USAGE, AdvisorError
from advisor.harness.layout import JOURNAL_DIR

if TYPE_CHECKING:
    from advisor.findings import Findings
    from advisor.improve.accept import Answer
    from advisor.improve.offers import Offer
    from advisor.profile import Profiled

BUDGET = 20 * 60.0  # seconds
MIN_GAIN = 0.02


@click.command(short_help="Run a script, find what holds it back, try out what helps.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.option("--python", "interpreter", help="The interpreter that runs the script. [default: the active venv's]")
@click.option(
    "--accept",
    metavar="WHICH",
    help="Which fixes to try: ask, safe (all that compute exactly the same), all, none, or names of rules with commas. "
    "[default: ask at a terminal, else none]",
)
@click.option(
    "--budget", type=Duration(), help="Time for the whole session, or from now on when it is resumed. [default: 20m]"
)
@click.option("--min-gain", type=Share(), help="What a fix must bring to be kept. [default: 2%]")
@click.option("--write", is_flag=True, help="Write what was kept to the files, without asking.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="SESSION",
    help="Compare with an earlier session, and say whether the script became slower, and what changed.",
)
@click.option(
    "--fail-on",
    metavar="LIMIT",
    help="With --against: exit with status 5 when a step surely takes more time than then, as in slower:5%.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the script as it is N times in all; the more, the smaller the differences that --against can tell. "
    "[default: 1, with --against 3]",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="SESSION",
    help="Go on with a session that was stopped, instead of a SCRIPT.",
)
@rules_option
@click.option(
    "--step",
    type=click.Choice(["auto", "optimizer", "loader", "forward"]),
    default="auto",
    show_default=True,
    help="What one step is, where the advisor does not find it out by itself.",
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Ignore so many steps before measuring.")
@click.option(
    "--timeout",
    type=Duration(),
    default=1800.0,
    help="End a run of the script after this time, as in 90s or 30m. [default: 30m]",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=SESSIONS,
    show_default=True,
    help="Where sessions are kept.",
)
def profile(
    script: str | None,
    arguments: tuple[str, ...],
    module: bool,
    interpreter: str | None,
    accept: str | None,
    budget: float | None,
    min_gain: float | None,
    write: bool,
    against: Path | None,
    fail_on: str | None,
    repeat: int | None,
    resume: Path | None,
    rule_folders: tuple[Path, ...],
    step: str,
    skip: int,
    timeout: float,
    output: Path,
) -> None:
    """Run SCRIPT as it is, measure its steps, report what to change, and try out the changes that you accept.

    The script's own options go after `--`: advisor profile train.py -- --epochs 1. What torchrun or accelerate launch
    starts is profiled at rank 0: advisor profile torchrun -- --nproc-per-node 2 train.py. The script is stopped as
    soon as enough was measured, and every file that it changed is put back; what it wrote anew is kept in the
    session's folder. A change is tried on a copy in memory: your files stay as they are until you say otherwise at
    the end.
    """
    from rich.console import Console

    from advisor import gate
    from advisor.launch import find_python, launcher
    from advisor.profile import Talk, profile
    from advisor.profile import resume as go_on
    from advisor.report import question
    from advisor.report.progress import Progress
    from advisor.session import Settings

    if (script is None) == (resume is None):
        raise AdvisorError("name the script to run, or a session by --resume.", USAGE)
    if resume is not None and (against or fail_on or repeat or rule_folders):
        raise AdvisorError(
            "a resumed session keeps its --against, --fail-on, --repeat and --rules: name a SCRIPT for new ones."
        )
    interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    terminal, told = console(), []

    def found(document: Findings, files: dict[str, str]) -> None:
        if interactive:  # there it is what the questions are about
            show(document, files)
            told.append(document)

    with Progress(Console(stderr=True)) as progress:

        def ask(offer: Offer) -> Answer:
            progress.pause()
            return question.ask(offer.document, terminal)

        talk = Talk(progress.show, progress.event, found, ask if interactive else None)
        if resume is not None:
            put_back(*{journal.parents[2] for journal in resume.resolve().rglob(JOURNAL_DIR)})
            done = go_on(resume, talk, accept=accept, budget=budget, min_gain=min_gain)
        else:
            assert script is not None
            launched = None if module else launcher(script)
            module = module or launched is not None
            settings = Settings(
                script=(launched or script) if module else os.path.abspath(script),
                module=module,
                argv=list(arguments),
                python=find_python(interpreter),
                cwd=os.getcwd(),
                step=step,
                skip=skip,
                timeout=timeout,
                accept=accept or ("ask" if interactive else "none"),
                budget=budget or BUDGET,
                min_gain=MIN_GAIN if min_gain is None else min_gain,
                runs=repeat or (gate.RUNS if against else 1),
                against=os.path.abspath(against) if against else None,
                fail_on=fail_on,
                rules=[str(folder.resolve()) for folder in rule_folders],
            )
            done = profile(settings, output, talk)
    if not told or done.document.outcome is not None:
        show(done.document, done.files)
    _say_why_nothing_was_tried(done)
    passes = _passes(done)
    _offer_to_write(done, write, interactive)
    if not passes:
        click.get_current_context().exit(FAIL_ON)


def _say_why_nothing_was_tried(done: Profiled) -> None:
    """Where fixes were to be tried, and none was: what --accept would have to say."""
    accept = done.session.settings.accept
    left = {finding.rule for finding in done.document.findings if finding.fix.kind != "advice"}
    if accept in ("none", "ask") or done.document.outcome is not None or not left:
        return
    names = ",".join(sorted(left))
    click.echo(f"No change was tried: --accept {accept} takes none of these; --accept all does, or --accept {names}.")


def _passes(done: Profiled) -> bool:
    """Whether the session is not slower than the earlier one it was to be compared with; says so."""
    from advisor import gate
    from advisor.report import comparison

    settings = done.session.settings
    if settings.against is None:
        return True
    fail_on = gate.parse_fail_on(settings.fail_on) if settings.fail_on is not None else None
    judged = gate.judge(Path(settings.against), done.session.folder, fail_on)
    gate.write(judged, done.session.folder)
    comparison.show(judged.contrast, console(), ("earlier", "now"), judged.sentences)
    return not judged.failed


def _offer_to_write(done: Profiled, unasked: bool, interactive: bool) -> None:
    """Write the kept edits to the user's files, if that is what they want."""
    from advisor.improve import write

    if done.edit is None:
        return
    names = ", ".join(os.path.relpath(path) for path in done.edit.after)
    if not unasked and not (interactive and click.confirm(f"Write the changes that were kept to {names}?")):
        return
    write.write(done.edit, Path(done.files["patch"]) if "patch" in done.files else None)
    click.echo(f"written: {names}")
