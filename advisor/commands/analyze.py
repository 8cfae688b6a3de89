"""``advisor analyze``."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.commands.printing import FORMATS, as_text, print_text, show
from advisor.commands.rules import rules_option


@click.command()
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
@rules_option
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write report.html, report.md and findings.json to this folder.",
)
@click.option(
    "--export",
    "table_format",
    type=click.Choice(("parquet",)),
    help="Also write the tables that were read (kernels, operators, copies, runtime calls …), to query them with "
    "polars, duckdb or pandas: a folder per trace in OUTPUT/tables, or in ./tables without --output.",
)
@click.option(
    "--trace-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Refuse a trace with more than this many GiB of JSON.  [default: 1, or 100 times the compressed file if that "
    "is more: a small file may hold terabytes of nothing]",
)
def analyze(
    paths: tuple[str, ...],
    format_: str,
    source: Path | None,
    rule_folders: tuple[Path, ...],
    output: Path | None,
    table_format: str | None,
    trace_limit: float | None,
) -> None:
    """Diagnose traces that were recorded elsewhere, or a run again.

    PATH is a trace of torch.profiler (.json, .json.gz or .json.zst, also a URL), a folder of traces, a pattern, or a
    run folder of `advisor profile`. Several traces are taken as the ranks of one job.
    """
    from advisor import report as reports
    from advisor.analyze import analyze as diagnose_paths
    from advisor.analyze import export_tables
    from advisor.rulebook import use

    use(rule_folders)
    document, evidence = diagnose_paths(paths, source, int(trace_limit * 2**30) if trace_limit is not None else None)
    files = reports.write(document, output, evidence) if output else {}
    if table_format is not None:
        tables = export_tables(evidence, (output or Path()) / "tables")
        files |= {f"tables of {folder.name}": str(folder) for folder in tables}
    if format_ == "text":
        show(document, files)
        return
    print_text(as_text(document, evidence, format_))
