"""Rules from elsewhere: a folder of the user's, an installed package; the template that one starts from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor import rulebook, rulecheck
from advisor.errors import USAGE, AdvisorError
from advisor.rule import Example
from advisor.rulebook import load_rules, use
from tests.conftest import Command

RULE = """
from advisor.rule import Advice, Finding, Gain, Rule, Safety

class Always(Rule):
    "Says that the script is there."
    id = "always"
    title = "Look at the script"
    safety = Safety.EXACT

    def check(self, evidence):
        yield Finding(self.id, self.title, "It is there.", Gain(1.1, 1.2, 1.3), {"one": 1})

    def fix(self, finding, sources):
        return Advice("Look at it.", "because it is there")
"""


@pytest.fixture(autouse=True)
def no_folders_afterwards() -> Iterator[None]:
    yield
    use(())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "always.py").write_text(RULE)
    return tmp_path / "own"


def test_rules_of_a_folder_come_behind_the_projects_own(folder: Path) -> None:
    own = [rule.id for rule in load_rules()]
    use([folder])
    assert [rule.id for rule in load_rules()] == [*own, "always"]
    use(())
    assert [rule.id for rule in load_rules()] == own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere\n", "cannot be imported: ModuleNotFoundError"),
        ("x = 1\n", "holds no rule"),
        (RULE.replace('id = "always"', 'id = "loader-workers"'), "two rules are called loader-workers"),
        (RULE.replace('    title = "Look at the script"\n', ""), "Always has no title"),
    ],
)
def test_what_cannot_be_used_is_one_clear_sentence(folder: Path, text: str, said: str) -> None:
    (folder / "always.py").write_text(text)
    use([folder])
    with pytest.raises(AdvisorError, match=said) as caught:
        load_rules()
    assert caught.value.exit_status == USAGE
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    use([tmp_path / "nowhere"])
    with pytest.raises(AdvisorError, match="no folder"):
        load_rules()


def test_a_package_brings_rules_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "their_rules.py").write_text(RULE)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    code = "from advisor.rulebook import load_rules; print([r.id for r in load_rules()][-1])"
    for value in ("their_rules", "their_rules:Always"):
        (info / "entry_points.txt").write_text(f"[{rulebook.ENTRY_POINTS}]\ntheirs = {value}\n")
        ran = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}"],
            capture_output=True,
            text=True,
        )
        assert ran.stdout == "always\n", ran.stderr


@pytest.mark.parametrize("name", ["my-rule", "x", "rule-2-b"])
def test_the_template_keeps_its_word(tmp_path: Path, advisor: Command, name: str) -> None:
    written = advisor("rules", "new", name)
    assert written.returncode == 0, written.stderr
    use([tmp_path / "advisor_rules"])
    rule = load_rules()[-1]
    assert rule.id == name
    assert rulecheck.problems(rule, {each.id for each in load_rules()}, tmp_path) == []
    assert f"{name}: keeps its word" in advisor("rules", "check").stdout
    again = advisor("rules", "new", name)
    assert again.returncode == USAGE and "is there already" in again.stderr
    assert name in advisor("rules", "--rules", "advisor_rules").stdout


def test_a_rule_that_does_not_keep_its_word_fails_the_check(folder: Path, advisor: Command) -> None:
    checked = advisor("rules", "check", "--rules", str(folder))
    assert checked.returncode == 1
    assert "always: the docstring has no" in checked.stdout


def test_a_name_that_is_none_is_refused(advisor: Command) -> None:
    refused = advisor("rules", "new", "My Rule")
    assert refused.returncode == USAGE and "lower-case" in refused.stderr
    missing = advisor("rules", "new")
    assert missing.returncode == USAGE and "advisor rules new my-rule" in missing.stderr


def test_analyze_uses_the_rules_of_a_folder(folder: Path, advisor: Command, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text('[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]')
    shown = advisor("analyze", str(trace), "--rules", str(folder))
    assert shown.returncode == 0, shown.stderr
    assert "Look at the script" in shown.stdout
    assert "Look at the script" not in advisor("analyze", str(trace)).stdout


def test_an_example_whose_fix_is_advice(folder: Path, tmp_path: Path) -> None:
    use([folder])
    rule = load_rules()[-1]
    assert rulecheck.example(rule, Example("x\n", "", advice="Look at it"), tmp_path) == []
    assert (
        "not advice that says 'Rewrite it'"
        in rulecheck.example(rule, Example("x\n", "", advice="Rewrite it"), tmp_path)[0]
    )
    assert "no edit" in rulecheck.example(rule, Example("x\n", "x\n"), tmp_path)[0]
