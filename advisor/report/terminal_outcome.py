"""What the session came to, on a terminal: the headline, the waterfall, what was not kept, and what to do now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from advisor.findings import Numerics, Outcome, Trial
from advisor.report import tried
from advisor.report.lines import STATUS_STYLES, clean, heading, plain, print_trimmed, print_unbroken, swatch
from advisor.report.waterfall import Bar, Waterfall, waterfall

_WIDEST_BAR = 60  # columns; longer bars are no easier to read
_SHORTEST_BAR = 8  # columns; shorter ones tell nothing
_HAVE, _GAINED, _SAVED = "kernel", "optimizer", "other"  # colours


def show(outcome: Outcome, console: Console, files: Mapping[str, str]) -> None:
    """Print it; ``files`` tells where the patch is."""
    heading("What was tried", console)
    console.print(plain(tried.headline(outcome), console), style="bold")
    for text in (tried.basis(outcome), tried.ended(outcome)):
        if text:
            console.print(plain(text, console), style="dim")
    if outcome.kept:
        console.print()
        _show_waterfall(waterfall(outcome), console)
    for title, kept in (("Kept", True), ("Tried and not kept", False)):
        trials = [trial for trial in outcome.trials if (trial.status == "kept") is kept]
        if trials:
            heading(title, console)
        for trial in trials:
            _show_trial(trial, console)
    _show_what_now(outcome, console, files)


def _show_waterfall(shape: Waterfall, console: Console) -> None:
    units = [f" {shape.unit}" if bar.kind == "baseline" else "" for bar in shape.bars]
    rows = [(_name(bar), shape.text(bar.amount) + unit) for bar, unit in zip(shape.bars, units, strict=True)]
    captions = [caption for bar in shape.bars for _, caption, _ in _marks(bar)]
    left = max([len(name) + 2 + len(value) for name, value in rows] + [len(caption) for caption in captions])
    width = min(_WIDEST_BAR, console.width - left - 2)
    if width < _SHORTEST_BAR:
        width = 0
    left = min(left, console.width - width - (2 if width else 0))
    scale = width / shape.top if shape.top else 0.0
    for bar, (name, value) in zip(shape.bars, rows, strict=True):
        label = plain(name, console)
        label.truncate(left - len(value) - 1, overflow="ellipsis", pad=True)
        label.stylize("bold green" if bar.kind == "kept" else "bold")
        line = Text.assemble(label, " ", plain(value, console))
        _print_row(line, _drawn(bar, shape, scale, console), left, console)
        for kind, caption, ends in _marks(bar):
            line = plain(caption, console)
            line.stylize("" if kind == "measured" else "dim")
            _print_row(line, _mark(ends, scale, width), left, console)


def _name(bar: Bar) -> str:
    return f"{bar.trial.number}. {bar.trial.rule}" if bar.trial else bar.label


def _marks(bar: Bar) -> list[tuple[str, str, tuple[float, float] | None]]:
    """(what it is, its caption, where it lies) of a kept fix's interval and prediction."""
    if bar.trial is None:
        return []
    interval = (bar.low, bar.high) if bar.low is not None and bar.high is not None else None
    return [
        ("measured", f"   measured  {tried.measured(bar.trial)}", interval),
        ("predicted", f"   predicted {tried.predicted(bar.trial)}", bar.predicted),
    ]


def _drawn(bar: Bar, shape: Waterfall, scale: float, console: Console) -> Text:
    """What there was before in one colour and what the fix added (or saved, of a step's time) in another."""
    gained, saved = shape.gained(bar), shape.saved(bar)
    solid, end = round((bar.amount - gained) * scale), round((bar.amount + saved) * scale)
    text = swatch(_HAVE, console, solid)
    text.append_text(swatch(_GAINED if gained else _SAVED, console, end - solid))
    return text


def _mark(ends: tuple[float, float] | None, scale: float, width: int) -> Text:
    """``[---]`` from one end to the other; ``>`` where it goes on beyond the line."""
    if ends is None or not scale:
        return Text("")
    first, last = (max(0, round(end * scale) - 1) for end in ends)
    if last <= first:
        return Text(" " * min(first, width - 1) + "|")
    beyond, last, first = last >= width, min(last, width - 1), min(first, width - 2)
    return Text(" " * first + "[" + "-" * (last - first - 1) + (">" if beyond else "]"), style="dim")


def _print_row(left: Text, right: Text, width: int, console: Console) -> None:
    left.truncate(width, overflow="ellipsis", pad=True)
    row = Text.assemble(left, "  ", right)
    row.rstrip()
    print_unbroken(row, console)


def _show_trial(trial: Trial, console: Console) -> None:
    head = plain(f"{trial.number}. {trial.rule}", console)
    head.stylize("bold")
    head.append(f" ({trial.safety})", "dim")
    status = (trial.status, STATUS_STYLES.get(trial.status, "bold"))
    print_trimmed(Padding(Text.assemble(head, ": ", status), (0, 0, 0, 2)), console)
    for text in (*tried.details(trial), f"Run: {trial.folder}"):
        print_trimmed(Padding(plain(text, console), (0, 0, 0, 5)), console)
    compared = tried.side_by_side(trial)
    if compared:
        _show_side_by_side(compared, console)


def _show_side_by_side(compared: Numerics, console: Console) -> None:
    """The first and the last values, as many as there is room for."""
    noun = "loss" if compared.kind == "loss" else "output"
    heads = (f"{noun} number", "before", "with the fix")
    width = max(map(len, heads))
    every = tried.excerpt(compared, len(compared.before))
    widest = max(len(text) for row in every if row for text in row)
    columns = tried.excerpt(compared, max(2, (console.width - 5 - width) // (widest + 2) - 1))
    for index, title in enumerate(heads):
        cells = ["…" if row is None else f"{row[index]:>{widest}}" for row in columns]
        text = plain("  ".join([f"     {title:{width}}", *cells]), console)
        text.rstrip()
        if index == 0:
            text.stylize("dim")
        print_unbroken(text, console)


def _show_what_now(outcome: Outcome, console: Console, files: Mapping[str, str]) -> None:
    if not outcome.kept:
        return
    heading("What to do now", console)
    if any(trial.fix.diff for trial in outcome.trials if trial.status == "kept"):
        # Shown again later, the report does not know its folder: there the patch lies beside it.
        patch = shlex.quote(files.get("patch") or "fixes.patch")
        print_unbroken(Text.assemble("  apply the fixes   ", (clean(f"git apply {patch}"), "bold")), console)
    if outcome.command:
        print_unbroken(Text.assemble("  run the script    ", (clean(outcome.command), "bold")), console)
    if tried.now(outcome):
        print_trimmed(Padding(plain(f"With what was kept: {tried.now(outcome)}", console), (0, 0, 0, 2)), console)
