"""``advisor tensorboard``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from advisor.commands.printing import SESSIONS
from advisor.errors import AdvisorError


@click.command(short_help="Open TensorBoard on the sessions: traces, step times.")
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
