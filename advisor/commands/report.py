"""``advisor report``."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.commands.printing import FORMATS, SESSIONS, as_text, print_text, show
from advisor.errors import AdvisorError


@click.command()
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
        show(document, files)
    elif format_ == "html" and "report" in files:
        print_text((folder / reports.REPORT_HTML).read_text(encoding="utf-8"))
    else:
        print_text(as_text(document, None, format_))
