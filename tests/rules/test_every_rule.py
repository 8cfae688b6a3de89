"""Every rule keeps its own word: documentation, and each example's fix."""

from __future__ import annotations

import re
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.diagnose import load_rules
from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Variable

RULES = load_rules()
FIRST_TWELVE = {
    "loader-workers", "copy-pinned-async", "copy-narrow-dtype", "batch-size", "zero-grad", "amp-autocast",
    "tf32-matmul", "channels-last", "cudnn-benchmark", "compile", "host-sync", "device-unused",
}  # fmt: skip
_MARK = re.compile(r"[ ]*# <-[ ]*(\w+=.+|[\w, ]*)$")


def case(rule: Rule, example: Example, path: Path) -> tuple[str, Finding]:
    """The example's text without its marks, and the finding that they describe."""
    site: Site | None = None
    parameters = dict(example.parameters)
    lines = textwrap.dedent(example.before).lstrip("\n").split("\n")
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
            assert site is None, "an example marks one site without a name"
            site = here
    finding = Finding(rule.id, rule.title, "", Gain(1.1, 1.2, 1.3), {}, site, {"script": str(path), **parameters})
    return "\n".join(lines), finding


def examples(name: str) -> list[pytest.param]:
    return [
        pytest.param(rule, example, id=f"{rule.id}-{index}")
        for rule in RULES
        for index, example in enumerate(getattr(rule, name))
    ]


def test_the_first_twelve_are_here() -> None:
    assert {rule.id for rule in RULES} >= FIRST_TWELVE


def test_ids_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_is_documented(rule: Rule) -> None:
    text = rule.documentation()
    assert rule.title and len(text.split()) > 40
    for part in ("When not:", "Source:"):
        assert part in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_has_examples_and_what_it_leaves_alone(rule: Rule) -> None:
    assert rule.EXAMPLES
    assert rule.LEAVES_ALONE


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rules_name_rules_that_exist(rule: Rule) -> None:
    assert {*rule.after, *rule.conflicts} <= {each.id for each in RULES} - {rule.id}


@pytest.mark.parametrize(("rule", "example"), examples("EXAMPLES"))
def test_fix_gives_what_the_example_says(rule: Rule, example: Example, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    before, finding = case(rule, example, path)
    after = textwrap.dedent(example.after).lstrip("\n")
    path.write_text(before)
    fix = rule.fix(finding, Sources())
    if example.options:
        assert isinstance(fix, Argument)
        assert fix.options == example.options
        return
    assert isinstance(fix, Edit), fix
    assert fix.texts[str(path)] == after
    assert fix.summary
    patch = fix.diff_bytes(str(tmp_path))
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path, check=True)
    assert path.read_text() == after


@pytest.mark.parametrize(("rule", "example"), examples("LEAVES_ALONE"))
def test_fix_leaves_alone(rule: Rule, example: Example, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    before, finding = case(rule, example, path)
    path.write_text(before)
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, (Advice, Argument, Variable))
    if isinstance(fix, Advice):
        assert fix.text and fix.why


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_without_a_place_the_fix_is_advice(rule: Rule) -> None:
    example = rule.EXAMPLES[0]
    _, finding = case(rule, example, Path("/nowhere/train.py"))
    unplaced = {key: value for key, value in finding.parameters.items() if not isinstance(value, tuple)}
    unplaced.pop("script", None)
    fix = rule.fix(replace(finding, site=None, parameters=unplaced), Sources())
    assert isinstance(fix, (Advice, Variable))
