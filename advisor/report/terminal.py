"""The report on a terminal, with rich: coloured where that is possible, plain and copyable where it is not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from advisor.findings import FindingDocument, Findings
from advisor.report import parts, wording
from advisor.report.colours import colour

_SAFETY_STYLES = {"exact": "green", "numeric": "yellow", "behaviour": "red"}
_STATUS_STYLES = {"kept": "bold green", "reverted": "yellow", "failed": "red"}
_WIDEST_BAR = 100  # columns; longer bars are no easier to read


def show(document: Findings, console: Console, files: Mapping[str, str] | None = None) -> None:
    """Print the whole report.

    ``files`` maps what a file is ("report") to where it is; they are listed last. Long lines (diffs, paths)
    are never cut or broken by us: they have to survive being copied.
    """
    _show_verdict(document, console)
    _show_breakdown(document, console)
    if document.findings:
        _show_ranking(document.findings, console)
        for finding in document.findings:
            _show_finding(finding, console)
    _show_list("Less certain, and why", document.notes, console)
    if files:
        _heading("Files", console)
        width = max(len(name) for name in files)
        for name, path in files.items():
            _line(Text.assemble("  ", (name.ljust(width), "bold"), "  ", path), console)
        console.print()


def _show_verdict(document: Findings, console: Console) -> None:
    console.print()
    console.print(_plain(document.verdict, console), style="bold")
    console.print(_plain(" · ".join(wording.headline(document)), console), style="dim")


def _show_breakdown(document: Findings, console: Console) -> None:
    classes = parts.ordered(document.breakdown)
    if not classes:
        return
    _heading("Where a step's time goes", console)
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
            Text.assemble(_swatch(part.family, console), " ", _plain(part.label, console)),
            wording.percent(share),
            _plain(time, console),
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
        bar.append_text(_swatch(parts.part(key).family, console, cells))
    return bar


def _show_ranking(findings: Sequence[FindingDocument], console: Console) -> None:
    _heading("What to change, most promising first", console)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("#", justify="right")
    table.add_column("rule", overflow="fold")
    table.add_column("place", overflow="fold")
    table.add_column("predicted", no_wrap=True)
    table.add_column("safety", no_wrap=True)
    table.add_column("fix", no_wrap=True)
    tried = any(finding.status != "proposed" for finding in findings)
    if tried:
        table.add_column("result", no_wrap=True)
    for finding in findings:
        row: list[RenderableType] = [
            str(finding.rank),
            Text(_clean(finding.rule), style="bold"),
            _plain(wording.place(finding), console),
            _plain(wording.speedup(finding.predicted.speedup), console),
            Text(finding.safety, style=_SAFETY_STYLES.get(finding.safety, "")),
            Text(finding.fix.kind),
        ]
        if tried:
            result = finding.status + (f" {finding.measured.speedup:.2f}×" if finding.measured else "")
            row.append(Text(_plain(result, console).plain, style=_STATUS_STYLES.get(finding.status, "")))
        table.add_row(*row)
    print_trimmed(table, console)


def _show_finding(finding: FindingDocument, console: Console) -> None:
    console.print()
    console.print(
        Text.assemble(
            (f"{finding.rank}. {_plain(finding.title, console)}", "bold"),
            (f"  [{_plain(finding.rule, console)}]", "dim"),
        )
    )
    body: list[RenderableType] = [
        _plain(" · ".join(([wording.place(finding)] if finding.file else []) + [wording.prediction(finding)]), console),
        Text.assemble(
            (finding.safety, _SAFETY_STYLES.get(finding.safety, "")),
            (": " + wording.SAFETY.get(finding.safety, ""), "dim"),
        ),
        Text(""),
        _plain(finding.summary, console),
    ]
    figures = [f"{name} {text}" for name, text in wording.evidence(finding.evidence)]
    if figures:
        body += [_plain("Evidence: " + " · ".join(figures), console)]
    measured = wording.measurement(finding)
    if measured:
        status = (finding.status, _STATUS_STYLES.get(finding.status, "bold"))
        body += [Text.assemble(status, ": ", _plain(measured, console))]
    elif finding.status != "proposed":
        body += [Text(wording.STATUSES[finding.status])]
    if finding.fix.text:
        body += [Text(""), _plain(finding.fix.text, console)]
    if finding.fix.why_advice:
        body += [Text.assemble(("No edit was made: ", "dim"), _plain(finding.fix.why_advice, console))]
    print_trimmed(Padding(Group(*body), (0, 0, 0, 3)), console)
    for setting in wording.settings(finding.fix):
        _line(Text(f"      {_clean(setting)}", style="bold"), console)
    if finding.fix.diff:
        console.print()
        _show_diff(finding.fix.diff, console)


def _show_diff(diff: str, console: Console) -> None:
    # Flush left and never wrapped, so that what is copied from the terminal is what `git apply` takes.
    diff = _clean(diff.rstrip("\n"))
    text = Text(diff)
    if console.color_system is not None:
        text = Syntax("", "diff", theme="ansi_dark", background_color="default").highlight(diff)
        text.rstrip()  # it adds a line
    _line(text, console)


def _show_list(title: str, sentences: Sequence[str], console: Console) -> None:
    if not sentences:
        return
    _heading(title, console)
    for sentence in sentences:
        print_trimmed(Padding(_plain(f"- {sentence}", console), (0, 0, 0, 2)), console)


def _heading(text: str, console: Console) -> None:
    console.print()
    console.print(Text(text, style="bold cyan"))


def print_trimmed(renderable: RenderableType, console: Console) -> None:
    """Print without the blanks that rich fills its columns up with: they are a nuisance in a log file."""
    for line in console.render_lines(renderable, pad=False):
        while line and not line[-1].text.strip(" "):
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
        console.print(Segments([*line, Segment.line()]), end="")


def _line(text: Text, console: Console) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _swatch(family: str, console: Console, cells: int = 1) -> Text:
    chosen = colour(family)
    if console.color_system is None or not _draws_blocks(console):
        return Text(chosen.glyph * cells)
    return Text("█" * cells, style=chosen.terminal)


def _draws_blocks(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def _plain(text: str, console: Console) -> Text:
    """`text` without markup, in characters that the console's encoding has."""
    if not _draws_blocks(console):
        for fancy, simple in (("–", "-"), ("×", "x"), ("·", "|"), ("→", "->"), ("µ", "u"), ("…", "...")):
            text = text.replace(fancy, simple)
        text = text.encode(console.encoding, "replace").decode(console.encoding)
    return Text(_clean(text))


def _clean(text: str) -> str:
    """Without control characters: a trace's names are anybody's text, and may not move the cursor or recolour."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
