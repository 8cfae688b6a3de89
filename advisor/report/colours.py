"""One colour per family of time, shared by the terminal, the page's bar and the picture of the step.

Chosen to stay apart for the common kinds of colour blindness (after Okabe and Ito, "Color Universal Design",
2008) and to carry white or black text on light and dark pages alike; no message rests on colour alone.
"""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """``page`` is a CSS colour, ``terminal`` a rich colour, ``glyph`` fills a bar where there are no colours."""

    page: str
    terminal: str
    glyph: str


FAMILIES: dict[str, Colour] = {
    "kernel": Colour("#3b82c4", "blue", "#"),
    "backward": Colour("#2f5f9e", "steel_blue", "%"),
    "optimizer": Colour("#1d9a78", "green", "o"),
    "loader": Colour("#e08a1e", "dark_orange", "="),
    "copy": Colour("#42b3d5", "cyan", "~"),
    "collective": Colour("#8e6bbf", "medium_purple", "c"),
    "sync": Colour("#c9483b", "red", "!"),
    "launch": Colour("#d074a8", "magenta", "+"),
    "host": Colour("#b59a3c", "yellow", "-"),
    "python": Colour("#7d8f3a", "dark_olive_green3", ":"),
    "other": Colour("#8a8f98", "bright_black", "."),
}


def colour(family: str) -> Colour:
    return FAMILIES.get(family, FAMILIES["other"])
