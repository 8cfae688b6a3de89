"""The catalogue of rules on a terminal, from the rules' own docstrings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from advisor.errors import AdvisorError
from advisor.report import wording
from advisor.report.lines import print_trimmed
from advisor.rule import Rule
from advisor.rulebook import meant

_MARK = re.compile(r"\s*# <-.*$")  # where an example's finding is


def show_all(console: Console, rules: Iterable[Rule]) -> None:
    """Each rule on a line: its name, what it is about, how safe its fix is."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rule", no_wrap=True)
    table.add_column("safety", no_wrap=True)
    table.add_column("about", ratio=1)
    for rule in sorted(rules, key=lambda rule: rule.id):
        table.add_row(Text(rule.id, style="bold"), rule.safety.value, Text(rule.title))
    print_trimmed(table, console)
    console.print(Text("\n`advisor rules NAME` explains one of them.", style="dim"))


def markdown(rules: Iterable[Rule]) -> str:
    """The catalogue as a Markdown table: each rule's name, what is wrong (its docstring's first words), its safety."""
    lines = ["| rule | what is wrong | the fix is |", "|---|---|---|"]
    for rule in sorted(rules, key=lambda rule: rule.id):
        what = " ".join(rule.documentation().split("\n\n")[0].split()).replace("|", "\\|")
        lines.append(f"| `{rule.id}` | {what} | {rule.safety.value} |")
    return "\n".join(lines) + "\n"


def show(name: str, console: Console, rules: Iterable[Rule]) -> None:
    """One rule: title, safety, documentation, and an example of its fix. Raises AdvisorError for an unknown name."""
    known = {rule.id: rule for rule in rules}
    rule = known.get(name)
    if rule is None:
        raise AdvisorError(f"there is no rule called {name!r}: {meant(name, known)}")
    console.print(Text.assemble((rule.title, "bold"), (f"  [{rule.id}]", "dim")))
    console.print(Text(f"{rule.safety.value}: {wording.SAFETY[rule.safety.value]}", style="dim"))
    console.print()
    print_trimmed(Markdown(rule.documentation()), console)
    relations = [(text, names) for text, names in (("Comes after", rule.after), ("Excludes", rule.conflicts)) if names]
    if relations:
        console.print()
    for text, names in relations:
        console.print(f"{text}: {', '.join(names)}")
    example = next((each for each in rule.EXAMPLES if not each.advice), None)  # advice has no diff
    if example is not None:
        before = [_MARK.sub("", line) for line in example.before.splitlines()]
        lines = list(difflib.unified_diff(before, example.after.splitlines(), "before", "after", lineterm="", n=3))
        if lines:
            console.print()
            console.print(Text("For example", style="bold"))
            for line in lines[2:]:
                style = {"+": "green", "-": "red", "@": "magenta"}.get(line[:1], "")
                console.print(Text("    " + line, style=style), soft_wrap=True)
