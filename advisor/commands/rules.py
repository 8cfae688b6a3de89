"""``advisor rules``."""

from __future__ import annotations

import click

from advisor.commands.printing import console


@click.command(short_help="List what can be found, or explain one rule.")
@click.argument("name", required=False)
def rules(name: str | None) -> None:
    """List what can be found, or explain one rule: what is wrong, why it costs time, when to leave it.

    NAME is a rule's name as reports show it, `loader-workers` for example.
    """
    from advisor.diagnose import load_rules
    from advisor.report import catalogue

    if name is None:
        catalogue.show_all(console(), load_rules())
    else:
        catalogue.show(name, console(), load_rules())
