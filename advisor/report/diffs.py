"""Unified diffs as HTML: added and removed lines marked, and the Python in them highlighted (pygments)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Line:
    """One line of a diff. ``kind``: file | hunk | added | removed | context | note; ``code`` is safe HTML."""

    kind: str
    old: int | None
    new: int | None
    code: Markup


def lines(diff: str) -> list[Line]:
    """The diff's lines, with line numbers of both sides."""
    out: list[Line] = []
    # Only "\n" ends a line of a diff: form feeds and the like belong to the source.
    texts = diff.removesuffix("\n").split("\n")
    at = 0
    while at < len(texts):
        header = _HUNK.match(texts[at])
        out.append(Line("hunk" if header else "file", None, None, Markup(html.escape(texts[at]))))
        at += 1
        if not header:
            continue
        # The header's counts say where the hunk ends: a removed line may well look like "--- a/file".
        begun, old, new = at, int(header[2] or 1), int(header[4] or 1)
        while at < len(texts) and (old > 0 or new > 0 or texts[at].startswith("\\")):
            sign = texts[at][:1]
            if sign not in ("-", "+", " ", "\\", ""):
                break
            old -= sign in ("-", " ", "")
            new -= sign in ("+", " ", "")
            at += 1
        out += _hunk(texts[begun:at], int(header[1]), int(header[3]))
    return out


def styles() -> str:
    """CSS of the highlighted code, for light pages and, inside a media query, dark ones."""
    light = HtmlFormatter(style="xcode").get_style_defs(".diff code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".diff code")
    wanted = re.compile(r"^\.diff code \.", re.MULTILINE)
    rules = ["\n".join(line for line in text.splitlines() if wanted.match(line)) for text in (light, dark)]
    return f"{rules[0]}\n@media (prefers-color-scheme: dark) {{\n{rules[1]}\n}}"


def _hunk(hunk: list[str], old: int, new: int) -> Iterator[Line]:
    # Each side is highlighted as a whole, so that a string or bracket that spans lines is understood.
    before = iter(_highlighted([text[1:] for text in hunk if text[:1] in ("-", " ", "")]))
    after = iter(_highlighted([text[1:] for text in hunk if text[:1] in ("+", " ", "")]))
    for text in hunk:
        sign = text[:1]
        if sign == "-":
            yield Line("removed", old, None, next(before))
            old += 1
        elif sign == "+":
            yield Line("added", None, new, next(after))
            new += 1
        elif sign == "\\":
            yield Line("note", None, None, Markup(html.escape(text)))
        else:
            next(before)
            yield Line("context", old, new, next(after))
            old, new = old + 1, new + 1


def _highlighted(code: list[str]) -> list[Markup]:
    """One piece of HTML per line; tokens that span lines are closed and opened again at each line's end."""
    if not code:
        return []
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    formatter = HtmlFormatter()
    rows: list[list[str]] = [[]]
    for token, text in lexer.get_tokens("\n".join(code).replace("\r", "")):
        css = formatter._get_css_class(token)
        for index, piece in enumerate(text.split("\n")):
            if index:
                rows.append([])
            if piece:
                safe = html.escape(piece)
                rows[-1].append(f'<span class="{css}">{safe}</span>' if css else safe)
    # A lexer never drops a line, but a report must not fail over its colours.
    rows += [[] for _ in range(len(code) - len(rows))]
    return [Markup("".join(row)) for row in rows]
