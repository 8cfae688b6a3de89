"""Whether a rule keeps its word: its documentation, the rules that it names, and the fix of each of its examples.

``advisor rules check`` says so for a user's rules, the project's tests for its own.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Variable

_MARK = re.compile(r"[ ]*# <-[ ]*([\w, ]+=.+|[\w, ]*)$")
_WORDS = 40  # of documentation: below that nothing was explained
_PARTS = ("When not:", "Source:")


def problems(rule: Rule, ids: Collection[str], folder: Path) -> list[str]:
    """Everything that is wrong with `rule`, a sentence each; `ids` are those of all rules.

    `folder` is an empty one, for the examples.
    """
    found = [*documentation(rule), *relations(rule, ids)]
    for name in ("EXAMPLES", "LEAVES_ALONE"):
        if not getattr(rule, name):
            found.append(f"{name} is empty")
    for index, each in enumerate(rule.EXAMPLES):
        found += [f"EXAMPLES[{index}]: {problem}" for problem in example(rule, each, folder)]
    for index, each in enumerate(rule.LEAVES_ALONE):
        found += [f"LEAVES_ALONE[{index}]: {problem}" for problem in left_alone(rule, each, folder)]
    return found + (unplaced(rule) if rule.EXAMPLES else [])


def documentation(rule: Rule) -> list[str]:
    """What the docstring lacks."""
    text = rule.documentation()
    found = [f"the docstring has no {part!r}" for part in _PARTS if part not in text]
    if len(text.split()) <= _WORDS:
        found.append(f"the docstring has {len(text.split())} words, which explain nothing; {_WORDS} are the least")
    return found


def relations(rule: Rule, ids: Collection[str]) -> list[str]:
    """The rules that it names and that are not there."""
    unknown = {*rule.after, *rule.conflicts} - (set(ids) - {rule.id})
    return [f"it names the rules {', '.join(sorted(unknown))}, which do not exist"] if unknown else []


def example(rule: Rule, case: Example, folder: Path) -> list[str]:
    """Whether the fix of ``before`` is ``after`` (or the options, or the advice), and nothing else."""
    path = folder / "train.py"
    before, finding = marked(rule, case, path)
    path.write_text(before)
    fix = rule.fix(finding, Sources())
    if case.options:
        right = isinstance(fix, Argument) and dict(fix.options) == dict(case.options)
        return [] if right else [f"the fix is {fix}, not the options {dict(case.options)}"]
    if case.advice:
        right = isinstance(fix, Advice) and case.advice in fix.text and bool(fix.why)
        return [] if right else [f"the fix is {fix}, not advice that says {case.advice!r} and why it is no edit"]
    if not isinstance(fix, Edit):
        return [f"the fix is no edit, but {fix}"]
    after = textwrap.dedent(case.after).lstrip("\n")
    found = [] if fix.summary else ["the edit has no summary"]
    if fix.texts.get(str(path)) != after:
        found.append(f"the fix does not give what `after` says, but:\n{fix.texts.get(str(path))}")
    return found


def left_alone(rule: Rule, case: Example, folder: Path) -> list[str]:
    """Whether no edit comes out, and advice says why."""
    path = folder / "train.py"
    before, finding = marked(rule, case, path)
    path.write_text(before)
    fix = rule.fix(finding, Sources())
    if isinstance(fix, Edit):
        return [f"an edit comes out:\n{fix.texts.get(str(path))}"]
    if isinstance(fix, Advice) and not (fix.text and fix.why):
        return ["the advice does not say what to do, or not why no edit was made"]
    return []


def unplaced(rule: Rule) -> list[str]:
    """Whether the fix is advice where it is not known where it would go."""
    _, finding = marked(rule, rule.EXAMPLES[0], Path("/nowhere/train.py"))
    parameters = {key: value for key, value in finding.parameters.items() if not isinstance(value, tuple)}
    parameters.pop("script", None)
    fix = rule.fix(replace(finding, site=None, parameters=parameters), Sources())
    return [] if isinstance(fix, (Advice, Variable)) else [f"without a place the fix is {fix}, not advice"]


def marked(rule: Rule, case: Example, path: Path) -> tuple[str, Finding]:
    """The text of ``before`` without its marks, and the finding that they describe."""
    site: Site | None = None
    parameters = dict(case.parameters)
    lines = textwrap.dedent(case.before).lstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        mark = _MARK.search(line)
        if mark is None:
            continue
        lines[number - 1] = line[: mark.start()]
        here = Site(str(path), number)
        names, _, code = mark[1].partition("=")
        if code:  # with columns, as Python 3.11 records them
            column = line.index(code)
            here = Site(str(path), number, column, number, column + len(code))
        for name in filter(None, names.replace(",", " ").split()):
            parameters[name] = (*parameters.get(name, ()), here)  # type: ignore[misc]
        if not mark[1]:
            if site is not None:
                raise ValueError("an example marks one site without a name, not two")
            site = here
    finding = Finding(rule.id, rule.title, "", Gain(1.1, 1.2, 1.3), {}, site, {"script": str(path), **parameters})
    return "\n".join(lines), finding
