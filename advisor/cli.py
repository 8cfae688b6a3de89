"""The ``advisor`` command: one click command per verb, each a thin call."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor import __version__
from advisor.amounts import Duration, Share
from advisor.errors import BUG, FAIL_ON, INTERRUPTED, OK, USAGE, AdvisorError

if TYPE_CHECKING:
    from rich.console import Console

    from advisor.accept import Answer
    from advisor.evidence import Evidence
    from advisor.findings import Findings
    from advisor.offers import Offer
    from advisor.profile import Profiled

SESSIONS = "advisor_runs"
BUDGET = 20 * 60.0  # seconds
MIN_GAIN = 0.02
FORMATS = ("text", "json", "html", "md")


class _InOrder(click.Group):
    """Lists the commands in the order in which one meets them, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Nothing is uploaded, and no account is needed. `advisor COMMAND --help` says more about each.",
)
@click.version_option(__version__, "-V", "--version", message="advisor %(version)s")
def cli() -> None:
    """Find out where a PyTorch script's time goes, and what to change about it.

    `advisor profile train.py` runs your script as it is, measures its steps, and reports ranked changes to it: each
    with the numbers behind it, the speedup that it should bring, and the diff.
    """
    from advisor.restore import recover

    for run_dir, restored in recover(Path(SESSIONS)):
        if restored.put_back or restored.moved:
            changed, made = len(restored.put_back), len(restored.moved)
            click.echo(
                f"advisor: the run {run_dir} was killed; {changed} files that it had changed were put back, and {made} "
                "new ones moved there.",
                err=True,
            )
        for failure in restored.failed:
            click.echo(f"advisor: could not be put back: {failure}", err=True)


@cli.command(short_help="Run a script, find what holds it back, try out what helps.")
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
@click.option("--budget", type=Duration(), help="Time for the whole session, as in 20m. [default: 20m]")
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
    step: str,
    skip: int,
    timeout: float,
    output: Path,
) -> None:
    """Run SCRIPT as it is, measure its steps, report what to change, and try out the changes that you accept.

    The script's own options go after `--`: advisor profile train.py -- --epochs 1. It is stopped as soon as enough was
    measured, and every file that it changed is put back; what it wrote anew is kept in the session's folder. A change
    is tried on a copy in memory: your files stay as they are until you say otherwise at the end.
    """
    from rich.console import Console

    from advisor import gate
    from advisor.launch import find_python
    from advisor.profile import Talk, go_on, profile
    from advisor.report import question
    from advisor.report.progress import Progress
    from advisor.session import Session, Settings

    if (script is None) == (resume is None):
        raise AdvisorError("name the script to run, or a session by --resume.", USAGE)
    if resume is not None and (against or fail_on or repeat):
        raise AdvisorError("a resumed session keeps its --against, --fail-on and --repeat: name a SCRIPT for new ones.")
    interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    console, told = _console(), []

    def found(document: Findings, files: dict[str, str]) -> None:
        if interactive:  # there it is what the questions are about
            _show(document, files)
            told.append(document)

    with Progress(Console(stderr=True)) as progress:

        def ask(offer: Offer) -> Answer:
            progress.pause()
            return question.ask(offer.document, console)

        talk = Talk(progress.show, progress.event, found, ask if interactive else None)
        if resume is not None:
            done = go_on(Session.open(resume).changed(accept=accept, budget=budget, min_gain=min_gain), talk)
        else:
            assert script is not None
            settings = Settings(
                script=script if module else os.path.abspath(script),
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
            )
            done = profile(settings, output, talk)
    if not told or done.document is not told[0]:
        _show(done.document, done.files)
    _offer_to_write(done, write, interactive)
    if not _passes(done):
        click.get_current_context().exit(FAIL_ON)


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
    comparison.show(judged.contrast, _console(), ("earlier", "now"), judged.sentences)
    return not judged.failed


def _offer_to_write(done: Profiled, unasked: bool, interactive: bool) -> None:
    """Write the kept edits to the user's files, if that is what they want."""
    from advisor import write

    if done.edit is None:
        return
    names = ", ".join(os.path.relpath(path) for path in done.edit.after)
    if not unasked and not (interactive and click.confirm(f"Write the changes that were kept to {names}?")):
        return
    write.write(done.edit, Path(done.files["patch"]) if "patch" in done.files else None)
    click.echo(f"written: {names}")


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="What to print: the report as text, Markdown or one HTML page, or the findings alone as JSON.",
)
@click.option(
    "--source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script that was profiled, so that findings can name its lines and bring a diff.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write report.html, report.md and findings.json to this folder.",
)
@click.option(
    "--trace-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=4.0,
    show_default=True,
    metavar="GIB",
    help="Refuse a trace with more than this many GiB of JSON: a small compressed file may hold terabytes of nothing.",
)
def analyze(paths: tuple[str, ...], format_: str, source: Path | None, output: Path | None, trace_limit: float) -> None:
    """Diagnose traces that were recorded elsewhere, or a run again.

    PATH is a trace of torch.profiler (.json, .json.gz or .json.zst, also a URL), a folder of traces, a pattern, or a
    run folder of `advisor profile`. Several traces are taken as the ranks of one job.
    """
    from advisor.analyze import analyze as diagnose_paths

    document, evidence = diagnose_paths(paths, source, int(trace_limit * 2**30))
    files = _write(document, output, evidence) if output else {}
    if format_ == "text":
        _show(document, files)
        return
    _print(_as_text(document, evidence, format_))


@cli.command()
@click.argument("session", required=False, type=click.Path(path_type=Path), metavar="[SESSION]")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="What to print: the report as text, Markdown or one HTML page, or the findings alone as JSON.",
)
@click.option("--open", "open_", is_flag=True, help="Open the HTML report in the browser instead of printing.")
def report(session: Path | None, format_: str, open_: bool) -> None:
    """Show the report of a finished session again.

    SESSION is a folder that `advisor profile` or `advisor analyze --output` wrote, or a findings.json; without it, the
    newest session in advisor_runs is shown.
    """
    from advisor import report as reports

    session = session if session is not None else reports.newest(SESSIONS)
    document = reports.read(session)
    folder = session if session.is_dir() else session.parent
    names = {"report": reports.REPORT_HTML, "markdown": reports.REPORT_MD, "findings": reports.FINDINGS_JSON}
    files = {what: str(folder / name) for what, name in names.items() if (folder / name).is_file()}
    if open_:
        if "report" not in files:
            raise AdvisorError(f"{folder} holds no {reports.REPORT_HTML}: print the report without --open.")
        click.launch((folder / reports.REPORT_HTML).resolve().as_uri())
        click.echo(files["report"])
    elif format_ == "text":
        _show(document, files)
    elif format_ == "html" and "report" in files:
        _print((folder / reports.REPORT_HTML).read_text(encoding="utf-8"))
    else:
        _print(_as_text(document, None, format_))


@cli.command(short_help="Say whether one run is faster than another, by how much, and what differs.")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What to print: the comparison as text, or as JSON.",
)
def compare(a: Path, b: Path, format_: str) -> None:
    """Compare two runs: is B faster than A, by how much, how sure is that, and what differs between them.

    A and B are folders that `advisor profile` wrote: of a run, of a trial (all runs of the patched script count), or of
    a session (the script as it was found: its baseline, and what repeats it).
    """
    from advisor.contrast import contrast, open_side
    from advisor.report import comparison

    result = contrast(open_side(a), open_side(b))
    if format_ == "json":
        _print(comparison.encode(result).decode())
    else:
        comparison.show(result, _console())


@cli.command(short_help="List what can be found, or explain one rule.")
@click.argument("name", required=False)
def rules(name: str | None) -> None:
    """List what can be found, or explain one rule: what is wrong, why it costs time, when to leave it.

    NAME is a rule's name as reports show it, `loader-workers` for example.
    """
    from advisor.diagnose import load_rules
    from advisor.report import catalogue

    console = _console()
    if name is None:
        catalogue.show_all(console, load_rules())
    else:
        catalogue.show(name, console, load_rules())


@cli.command(short_help="Open TensorBoard on the sessions: traces, step times.")
@click.argument("folder", default=SESSIONS, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port; 0 takes any free one. [default: 6006 or the next]",
)
@click.option("--host", default="localhost", show_default=True, help="Listen on this address.")
def tensorboard(folder: Path, port: int | None, host: str) -> None:
    """Open TensorBoard on the sessions in DIR (advisor_runs): their traces, step times and throughput.

    The traces are under "PyTorch Profiler", step times and throughput under "Scalars", which fixes are on in which run
    under "HParams". Ctrl-C ends it.
    """
    from advisor.tensorboard import hparams, scalars
    from advisor.tensorboard.serve import Server

    runs = scalars.find_runs(folder) if folder.is_dir() else []
    tried = hparams.describe(runs)
    for run in runs:
        try:
            scalars.write(run, tried.get(run))
        except AdvisorError as error:
            click.echo(f"advisor: {error}", err=True)  # one bad run must not hide the others
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or TensorBoard would outlive us
    with Server(folder, port, host) as server:
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        click.echo(f"TensorBoard shows {count} of {folder} at {server.url} (Ctrl-C ends it)")
        server.wait()


def _as_text(document: Findings, evidence: Evidence | None, format_: str) -> str:
    from advisor import findings

    if format_ == "json":
        return findings.encode(document).decode()
    if format_ == "md":
        from advisor.report import markdown

        return markdown.render(document)
    from advisor.report import page
    from advisor.report.details import details

    return page.render(document, details(evidence) if evidence is not None else None)


def _write(document: Findings, folder: Path, evidence: Evidence | None) -> dict[str, str]:
    from advisor import report as reports

    return reports.write(document, folder, evidence)


def _show(document: Findings, files: dict[str, str]) -> None:
    from advisor.report import terminal

    terminal.show(document, _console(), files)


def _console() -> Console:
    from rich.console import Console

    return Console()


def _print(text: str) -> None:
    # As bytes: what is printed is the document, in UTF-8, whatever the terminal's encoding.
    click.echo(text.encode("utf-8", "replace"), nl=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status (``advisor.errors`` lists them)."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """The command without the exit: its status. Whatever goes wrong becomes one line on stderr and a status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks must not end the report
    try:
        result = cli.main(
            args=list(arguments) if arguments is not None else None, prog_name="advisor", standalone_mode=False
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except AdvisorError as error:
        click.echo(f"advisor: {error}", err=True)
        if error.detail:
            click.echo(error.detail, err=True)
        return error.exit_status
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (click.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not change how this ends
        click.echo("advisor: interrupted", err=True)
        return INTERRUPTED
    except click.NoSuchOption as error:
        error.show()
        if error.ctx is not None and error.ctx.command.name == "profile":
            click.echo(f"The script's own options go after `--`: advisor profile … -- {error.option_name}", err=True)
        return USAGE
    except click.ClickException as error:
        error.show()
        return USAGE
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough; nothing more can be said on this stream.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        where = _keep_traceback()
        what = f"{type(error).__name__}: {error}"
        click.echo(f"advisor: this is a bug of ours: {what}. Its traceback is in {where}; please report it.", err=True)
        return BUG


def _keep_traceback() -> str:
    text = f"advisor {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="advisor-bug-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
            return file.name
    except OSError:
        click.echo(text, err=True)
        return "the lines above"


if __name__ == "__main__":
    main()
