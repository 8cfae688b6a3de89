"""How texts get onto a terminal: escaped, in characters that it has, and so that they can be copied."""

from __future__ import annotations

import re

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from advisor.report.colours import colour

STATUS_STYLES = {"kept": "bold green", "reverted": "yellow", "failed": "red"}


def show_diff(diff: str, console: Console) -> None:
    """Flush left and never wrapped, so that what is copied from the terminal is what ``git apply`` takes."""
    diff = clean(diff.rstrip("\n"))
    text = Text(diff)
    if console.color_system is not None:
        text = Syntax("", "diff", theme="ansi_dark", background_color="default").highlight(diff)
        text.rstrip()  # it adds a line
    print_unbroken(text, console)


def heading(text: str, console: Console) -> None:
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


def print_unbroken(text: Text, console: Console) -> None:
    """However long it is: it has to survive being copied."""
    console.print(text, soft_wrap=True, highlight=False)


def swatch(family: str, console: Console, cells: int = 1) -> Text:
    """So many cells of a bar: coloured blocks, or the family's own character where there are no colours."""
    chosen = colour(family)
    if console.color_system is None or not _draws_blocks(console):
        return Text(chosen.glyph * cells)
    return Text("█" * cells, style=chosen.terminal)


def _draws_blocks(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def plain(text: str, console: Console) -> Text:
    """`text` without markup, in characters that the console's encoding has."""
    if not _draws_blocks(console):
        for fancy, simple in (("–", "-"), ("×", "x"), ("·", "|"), ("→", "->"), ("µ", "u"), ("…", "...")):
            text = text.replace(fancy, simple)
        text = text.encode(console.encoding, "replace").decode(console.encoding)
    return Text(clean(text))


def clean(text: str) -> str:
    """Without control characters: a trace's names are anybody's text, and may not move the cursor or recolour."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
