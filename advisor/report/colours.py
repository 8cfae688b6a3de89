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
    "kernel": Colour("#2f74b5", "blue", "#"),
    "forward": Colour("#4a90c9", "blue", "#"),
    "backward": Colour("#7472c4", "slate_blue1", "%"),
    "optimizer": Colour("#1f9a7a", "green", "o"),
    "loader": Colour("#e08a1e", "dark_orange", "="),
    "copy": Colour("#37a9c9", "cyan", "~"),
    "collective": Colour("#a05fb4", "medium_purple", "c"),
    "sync": Colour("#cc4b3c", "red", "!"),
    "launch": Colour("#cf6f9f", "magenta", "+"),
    "host": Colour("#a98f2f", "yellow", "-"),
    "python": Colour("#74893a", "dark_olive_green3", ":"),
    "queued": Colour("#9bb3cc", "light_steel_blue", "'"),
    "other": Colour("#878d97", "bright_black", "."),
}


def colour(family: str) -> Colour:
    return FAMILIES.get(family, FAMILIES["other"])
