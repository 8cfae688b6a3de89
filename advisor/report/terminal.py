"""The report on a terminal, with rich: coloured where that is possible, plain and copyable where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.findings import FindingDocument, Findings
from advisor.report import parts, terminal_outcome, tried, wording
from advisor.report.lines import STATUS_STYLES, clean, heading, plain, print_trimmed, print_unbroken, show_diff, swatch

_SAFETY_STYLES = {"exact": "green", "numeric": "yellow", "behaviour": "red"}
_WIDEST_BAR = 100  # columns; longer bars are no easier to read


def show(document: Findings, console: Console, files: Mapping[str, str] | None = None) -> None:
    """Print the whole report.

    ``files`` maps what a file is ("report") to where it is; they are listed last. Long lines (diffs, paths)
    are never cut or broken by us: they have to survive being copied.
    """
    _show_verdict(document, console)
    if document.outcome is not None:
        terminal_outcome.show(document.outcome, console, files or {})
    _show_breakdown(document, console)
    if document.findings:
        _show_ranking(document, console)
        for finding in tried.arranged(document):
            _show_finding(finding, console)
    _show_list("Less certain, and why", document.notes, console)
    if files:
        heading("Files", console)
        width = max(len(name) for name in files)
        for name, path in files.items():
            print_unbroken(Text.assemble("  ", (name.ljust(width), "bold"), "  ", path), console)
        console.print()


def _show_verdict(document: Findings, console: Console) -> None:
    console.print()
    console.print(plain(document.verdict, console), style="bold")
    console.print(plain(" · ".join(wording.headline(document)), console), style="dim")


def _show_breakdown(document: Findings, console: Console) -> None:
    classes = parts.ordered(document.breakdown)
    if not classes:
        return
    heading("Where a step's time goes", console)
    console.print(breakdown_bar(classes, console))
    legend = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    legend.add_column()
    legend.add_column(justify="right")
    legend.add_column(justify="right")
    legend.add_column(ratio=1)
    for key, share in classes:
        part = parts.part(key)
        time = wording.milliseconds(document.step_ms * share) if document.step_ms else ""
        legend.add_row(
            Text.assemble(swatch(part.family, console), " ", plain(part.label, console)),
            wording.percent(share),
            plain(time, console),
            Text(part.meaning, style="dim"),
        )
    print_trimmed(legend, console)


def breakdown_bar(classes: Sequence[tuple[str, float]], console: Console) -> Text:
    """The shares as one line: coloured blocks, or a different character for each class where there is no colour."""
    width = min(console.width, _WIDEST_BAR)
    bar = Text(no_wrap=True)
    total = sum(share for _, share in classes)
    position, done = 0.0, 0
    for key, share in classes:
        position += share / total * width
        cells = round(position) - done
        done += cells
        bar.append_text(swatch(parts.part(key).family, console, cells))
    return bar


def _show_ranking(document: Findings, console: Console) -> None:
    findings = tried.arranged(document)
    heading(tried.title(document), console)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("#", justify="right")
    table.add_column("rule", overflow="fold")
    table.add_column("place", overflow="fold")
    table.add_column("predicted", no_wrap=True)
    table.add_column("safety", no_wrap=True)
    table.add_column("fix", no_wrap=True)
    results = any(finding.status != "proposed" for finding in findings)
    if results:
        table.add_column("result", no_wrap=True)
    for finding in findings:
        row: list[RenderableType] = [
            str(finding.rank),
            Text(clean(finding.rule), style="bold"),
            plain(wording.place(finding), console),
            plain(wording.speedup(finding.predicted.speedup), console),
            Text(finding.safety, style=_SAFETY_STYLES.get(finding.safety, "")),
            Text(finding.fix.kind),
        ]
        if results:
            result = finding.status + (f" {finding.measured.speedup:.2f}×" if finding.measured else "")
            row.append(Text(plain(result, console).plain, style=STATUS_STYLES.get(finding.status, "")))
        table.add_row(*row)
    print_trimmed(table, console)


def _show_finding(finding: FindingDocument, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            (f"{finding.rank}. {plain(finding.title, console)}", "bold"),
            (f"  [{plain(finding.rule, console)}]", "dim"),
        )
    )
    body: list[RenderableType] = [
        plain(" · ".join(([wording.place(finding)] if finding.file else []) + [wording.prediction(finding)]), console),
        Text.assemble(
            (finding.safety, _SAFETY_STYLES.get(finding.safety, "")),
            (": " + wording.SAFETY.get(finding.safety, ""), "dim"),
        ),
        Text(""),
        plain(finding.summary, console),
    ]
    figures = [f"{name} {text}" for name, text in wording.evidence(finding.evidence)]
    if figures:
        body += [plain("Evidence: " + " · ".join(figures), console)]
    measured = wording.measurement(finding)
    if measured:
        status = (finding.status, STATUS_STYLES.get(finding.status, "bold"))
        body += [Text.assemble(status, ": ", plain(measured, console))]
    elif finding.status != "proposed":
        body += [Text(wording.STATUSES[finding.status])]
    if finding.fix.text:
        body += [Text(""), plain(finding.fix.text, console)]
    if finding.fix.why_advice:
        body += [Text.assemble(("No edit was made: ", "dim"), plain(finding.fix.why_advice, console))]
    print_trimmed(Padding(Group(*body), (0, 0, 0, 3)), console)
    for setting in wording.settings(finding.fix):
        print_unbroken(Text(f"      {clean(setting)}", style="bold"), console)
    if finding.fix.diff:
        console.print()
        show_diff(finding.fix.diff, console)


def _show_list(title: str, sentences: Sequence[str], console: Console) -> None:
    if not sentences:
        return
    heading(title, console)
    for sentence in sentences:
        print_trimmed(Padding(plain(f"- {sentence}", console), (0, 0, 0, 2)), console)
