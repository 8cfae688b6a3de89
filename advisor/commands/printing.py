"""What the commands print, and where sessions are when nobody says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from advisor.evidence import Evidence
    from advisor.findings import Findings

SESSIONS = "advisor_runs"
FORMATS = ("text", "json", "html", "md")


def put_back(*places: Path) -> None:
    """Put back what killed runs have changed – in sessions of these folders, and on the user's list – and say so."""
    from advisor.restore import recover

    for run_dir, restored in recover(*places):
        if restored.put_back or restored.moved:
            changed, made = len(restored.put_back), len(restored.moved)
            click.echo(
                f"advisor: the run {run_dir} was killed; {changed} files that it had changed were put back, and {made} "
                "new ones moved there.",
                err=True,
            )
        for failure in restored.failed:
            click.echo(f"advisor: could not be put back: {failure}", err=True)


def as_text(document: Findings, evidence: Evidence | None, format_: str) -> str:
    """The findings as one of FORMATS, "text" aside."""
    from advisor import findings

    if format_ == "json":
        return findings.encode(document).decode()
    if format_ == "md":
        from advisor.report import markdown

        return markdown.render(document)
    from advisor.report import page
    from advisor.report.details import details

    return page.render(document, details(evidence) if evidence is not None else None)


def show(document: Findings, files: dict[str, str]) -> None:
    """Print the whole report."""
    from advisor.report import terminal

    terminal.show(document, console(), files)


def console() -> Console:
    """The terminal, or whatever reads our output."""
    from rich.console import Console

    return Console()


def print_text(text: str) -> None:
    """Print a document: as bytes, for it is UTF-8, whatever the terminal's encoding."""
    click.echo(text.encode("utf-8", "replace"), nl=False)
