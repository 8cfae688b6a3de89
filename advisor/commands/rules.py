"""``advisor rules``."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import click

from advisor.commands.printing import console
from advisor.errors import USAGE, AdvisorError

OWN_RULES = Path("advisor_rules")
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

rules_option = click.option(
    "--rules",
    "rule_folders",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    metavar="DIR",
    help="Also use the rules in this folder's .py files; may be given several times.",
)


@click.command(short_help="List what can be found, explain one rule, or write your own.")
@click.argument("words", nargs=-1, metavar="[NAME | new NAME | check]")
@rules_option
def rules(words: tuple[str, ...], rule_folders: tuple[Path, ...]) -> None:
    """List what can be found, or explain one rule: what is wrong, why it costs time, when to leave it.

    NAME is a rule's name as reports show it, `loader-workers` for example.

    `advisor rules new my-rule` writes a rule of your own to start from, into the folder that --rules names, or into
    ./advisor_rules; `advisor profile` and `advisor analyze` use it with --rules. `advisor rules check --rules DIR` runs
    the examples of the rules in DIR, and says what they lack.
    """
    from advisor import rulebook
    from advisor.report import catalogue

    if words[:1] == ("new",) and len(words) == 2:
        _write_template(words[1], rule_folders[0] if rule_folders else OWN_RULES)
        return
    if words == ("new",):
        raise AdvisorError("say what the rule is to be called: `advisor rules new my-rule`.", USAGE)
    if words == ("check",) and not rule_folders:
        rule_folders = (OWN_RULES,)
    rulebook.use(rule_folders)
    if words == ("check",):
        _check()
    elif not words:
        catalogue.show_all(console(), rulebook.load_rules())
    elif len(words) == 1:
        catalogue.show(words[0], console(), rulebook.load_rules())
    else:
        raise AdvisorError("name one rule, or say `new NAME`, or `check`.", USAGE)


def _write_template(name: str, folder: Path) -> None:
    """A rule to start from, whose examples hold."""
    if not _ID.fullmatch(name):
        raise AdvisorError(f"{name!r} is no name for a rule: lower-case words with hyphens, as in my-rule.", USAGE)
    path = folder / f"{name.replace('-', '_')}.py"
    text = Path(__file__).with_name("rule_template.txt").read_text(encoding="utf-8")
    text = text.replace("RULE_ID", name).replace("CLASS_NAME", "".join(map(str.capitalize, name.split("-"))))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise AdvisorError(f"{path} is there already; choose another name.", USAGE) from None
    except OSError as error:
        raise AdvisorError(f"cannot write {path}: {error.strerror or error}.", USAGE) from None
    click.echo(
        f"written: {path}\nSay in it what the numbers must be, then:\n"
        f"  advisor rules check --rules {folder}\n  advisor profile --rules {folder} train.py"
    )


def _check() -> None:
    """Runs the examples of the rules that are not the project's own; exits with 1 where one does not keep its word."""
    from advisor import rulebook, rulecheck

    known = rulebook.load_rules()
    theirs = [rule for rule in known if not type(rule).__module__.startswith("advisor.rules.")]
    failed = 0
    for rule in theirs:
        with tempfile.TemporaryDirectory() as folder:
            found = rulecheck.problems(rule, {each.id for each in known}, Path(folder))
        failed += bool(found)
        click.echo(f"{rule.id}: {'; '.join(found) if found else 'keeps its word'}")
    if failed:
        click.get_current_context().exit(1)
