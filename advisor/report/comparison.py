"""Two runs side by side: on a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.contrast import Contrast, Side, sentence
from advisor.report import parts, wording
from advisor.report.lines import heading, plain, print_trimmed, print_unbroken, swatch


def show(
    contrast: Contrast,
    console: Console,
    names: tuple[str, str] = ("A", "B"),
    verdict: Sequence[str] = (),
) -> None:
    """Print the whole comparison; ``names`` are what the two sides are called, ``verdict`` replaces its own."""
    console.print()
    for text in verdict or (sentence(contrast, *names),):
        console.print(plain(text, console), style="bold")
    width = max(len(name) for name in names)
    for name, side in zip(names, (contrast.a, contrast.b), strict=True):
        count = "1 run" if len(side.runs) == 1 else f"{len(side.runs)} runs"
        folder = plain(wording.script(str(side.folder)), console)
        print_unbroken(Text.assemble((name.ljust(width), "dim"), "  ", folder), console)
        console.print(plain(f"{' ' * width}  {count}, {_speed(side)}", console), style="dim")
    _show_breakdowns(contrast, console, names)
    _show_findings("New findings", contrast.appeared, console)
    _show_findings("Findings that are gone", contrast.gone, console)
    _show_differences(contrast, console, names)
    if contrast.notes:
        heading("Less certain, and why", console)
        for note in contrast.notes:
            print_trimmed(Padding(plain(f"- {note}", console), (0, 0, 0, 2)), console)
    console.print()


def encode(contrast: Contrast) -> bytes:
    """The comparison as JSON, indented, with a final newline. ``speedup`` is A's time over B's."""
    comparison = contrast.comparison
    document: dict[str, Any] = {
        "schema": 1,
        "verdict": sentence(contrast),
        "different": comparison.different,
        "speedup": comparison.speedup,
        "low": comparison.low,
        "high": comparison.high,
        "per": "sample" if contrast.per_sample else "step",
        "runs": list(comparison.runs),
        "paired": comparison.paired,
        "spread": comparison.spread,
        "spread_assumed": comparison.assumed,
        "smallest_gain": comparison.smallest_gain() - 1,
        "a": _side(contrast.a),
        "b": _side(contrast.b),
        "differences": [{"what": each.what, "a": each.a, "b": each.b} for each in contrast.differences],
        "findings_appeared": contrast.appeared,
        "findings_gone": contrast.gone,
        "notes": list(contrast.notes),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _side(side: Side) -> dict[str, Any]:
    return {
        "folder": str(side.folder),
        "runs": [str(run.folder) for run in side.runs],
        "script": side.record.script,
        "step_ms": side.step_s * 1e3,
        "samples_per_s": side.samples_per_s,
        "breakdown_ms": {name: seconds * 1e3 for name, seconds in side.breakdown.items()},
        "findings": list(side.findings) if side.findings is not None else None,
    }


def _speed(side: Side) -> str:
    text = f"{wording.milliseconds(side.step_s * 1e3)} per step"
    return f"{text}, {wording.number(side.samples_per_s)} samples/s" if side.samples_per_s is not None else text


def _show_breakdowns(contrast: Contrast, console: Console, names: tuple[str, str]) -> None:
    one, other = contrast.a.breakdown, contrast.b.breakdown
    larger = {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}
    heading("Where a step's time goes" if larger else "A step's time", console)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for title in (*names, "difference"):
        table.add_column(title, justify="right", no_wrap=True)

    def row(label: Text, a: float | None, b: float | None) -> None:
        # What only one of the two was asked for is not known of the other, which is not the same as nothing.
        shown = ["–" if each is None else wording.milliseconds(each * 1e3) for each in (a, b)]
        change = "–" if a is None or b is None else _signed(b - a)
        table.add_row(label, *(plain(text, console) for text in (*shown, change)))

    for key, _ in parts.ordered(larger):
        part = parts.part(key)
        label = Text.assemble(swatch(part.family, console), " ", plain(part.label, console))
        row(label, one.get(key, 0.0) if one else None, other.get(key, 0.0) if other else None)
    row(Text("the step", style="bold"), contrast.a.step_s, contrast.b.step_s)
    if contrast.a.samples_per_s is not None and contrast.b.samples_per_s is not None:
        change = contrast.b.samples_per_s - contrast.a.samples_per_s
        rates = [wording.number(each) for each in (contrast.a.samples_per_s, contrast.b.samples_per_s)]
        table.add_row("samples per second", *rates, ("+" if change > 0 else "") + wording.number(change))
    print_trimmed(table, console)


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + wording.milliseconds(seconds * 1e3)


def _show_findings(title: str, found: Mapping[str, str], console: Console) -> None:
    if not found:
        return
    heading(title, console)
    for rule, finding in found.items():
        print_trimmed(Padding(Text.assemble(plain(finding, console), (f"  [{rule}]", "dim")), (0, 0, 0, 2)), console)


def _show_differences(contrast: Contrast, console: Console, names: tuple[str, str]) -> None:
    heading("What else differs", console)
    if not contrast.differences:
        console.print("  nothing that was recorded: same machine, versions, settings and arguments", style="dim")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", *names):
        table.add_column(title, overflow="fold")
    for each in contrast.differences:
        table.add_row(*(plain(text or "–", console) for text in (each.what, each.a, each.b)))
    print_trimmed(table, console)
