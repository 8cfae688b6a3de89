"""``advisor compare``."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.commands.printing import console, print_text


@click.command(short_help="Say whether one run is faster than another, by how much, and what differs.")
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
        print_text(comparison.encode(result).decode())
    else:
        comparison.show(result, console())
