"""Puts a fix to the user at a terminal: y, n, d(iff), a(ll the exact ones), q."""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

from advisor.findings import FindingDocument
from advisor.improve.accept import Answer
from advisor.report import wording

_HELP = "y: try it · n: leave it · d: show the diff · a: this and every other exact one · q: try no more"


def ask(finding: FindingDocument, console: Console) -> Answer:
    """Ask until there is an answer; end of input counts as "q"."""
    console.print()
    console.print(Text(f"{finding.title} ({finding.rule}, {wording.place(finding)})", style="bold"))
    console.print(Text(f"  {wording.prediction(finding)} · {finding.safety}: {wording.SAFETY[finding.safety]}"))
    while True:
        try:
            typed = click.prompt("Try it? [y/n/d/a/q]", default="", show_default=False, prompt_suffix=" ")
        except click.Abort:
            return Answer.QUIT
        letter = typed.strip().lower()[:1]
        if letter == "d":
            console.print(Text(finding.fix.diff or finding.fix.text), soft_wrap=True)
        elif letter in {answer.value for answer in Answer}:
            return Answer(letter)
        else:
            console.print(Text(_HELP, style="dim"))
