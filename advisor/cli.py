"""The ``advisor`` command: its group, and what every command's end has in common."""

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

import click

from advisor import __version__
from advisor.commands.analyze import analyze
from advisor.commands.compare import compare
from advisor.commands.printing import SESSIONS, put_back
from advisor.commands.profile import profile
from advisor.commands.report import report
from advisor.commands.rules import rules
from advisor.commands.tensorboard import tensorboard
from advisor.errors import BUG, INTERRUPTED, OK, USAGE, AdvisorError


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
    put_back(Path(SESSIONS))


for command in (profile, analyze, report, compare, rules, tensorboard):
    cli.add_command(command)


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
