"""Every rule keeps its own word: documentation, and each example's fix."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Example, Rule
from advisor.rulebook import load_rules

RULES = load_rules()
IDS = {rule.id for rule in RULES}
FIRST_TWELVE = {
    "loader-workers", "copy-pinned-async", "copy-narrow-dtype", "batch-size", "zero-grad", "amp-autocast",
    "tf32-matmul", "channels-last", "cudnn-benchmark", "compile", "host-sync", "device-unused",
}  # fmt: skip


def examples(name: str) -> list[pytest.param]:
    return [
        pytest.param(rule, example, id=f"{rule.id}-{index}")
        for rule in RULES
        for index, example in enumerate(getattr(rule, name))
    ]


def test_the_first_twelve_are_here() -> None:
    assert IDS >= FIRST_TWELVE


def test_ids_are_unique() -> None:
    assert len(IDS) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_is_documented(rule: Rule) -> None:
    assert rulecheck.documentation(rule) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_has_examples_and_what_it_leaves_alone(rule: Rule) -> None:
    assert rule.EXAMPLES
    assert rule.LEAVES_ALONE


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rules_name_rules_that_exist(rule: Rule) -> None:
    assert rulecheck.relations(rule, IDS) == []


@pytest.mark.parametrize(("rule", "example"), examples("EXAMPLES"))
def test_fix_gives_what_the_example_says(rule: Rule, example: Example, tmp_path: Path) -> None:
    assert rulecheck.example(rule, example, tmp_path) == []
    if example.options or example.advice:
        return
    before, finding = rulecheck.marked(rule, example, tmp_path / "train.py")
    (tmp_path / "train.py").write_text(before)
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Edit)
    subprocess.run(["git", "apply", "-"], input=fix.diff_bytes(str(tmp_path)), cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == fix.texts[str(tmp_path / "train.py")]


@pytest.mark.parametrize(("rule", "example"), examples("LEAVES_ALONE"))
def test_fix_leaves_alone(rule: Rule, example: Example, tmp_path: Path) -> None:
    assert rulecheck.left_alone(rule, example, tmp_path) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_without_a_place_the_fix_is_advice(rule: Rule) -> None:
    assert rulecheck.unplaced(rule) == []
