"""Diagnosis: every rule is asked, none can end it, and what they find is ranked and written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from advisor.diagnose import diagnose, fix_document, rank
from advisor.edit import Edit, Sources
from advisor.errors import AdvisorError
from advisor.findings import encode, json_schema
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Finding, Gain, Rule, Safety, Variable

PLACE = Site("/nowhere/train.py", 3)


class Made(Rule):
    """A rule for a test."""

    id = "made"
    title = "Made"
    safety = Safety.EXACT

    def __init__(
        self,
        name: str,
        gain: Gain,
        fix: Any = None,
        after: tuple[str, ...] = (),
        site: Site | None = PLACE,
        **told: Any,
    ) -> None:
        self.id, self.after = name, after  # type: ignore[misc]
        self._gain, self._fix = gain, fix if fix is not None else Advice("do it", "by hand")
        self._site, self._told = site, told

    def check(self, evidence: Any) -> Iterator[Finding]:
        yield Finding(self.id, self.title, "measured", self._gain, {"share": 0.5}, self._site, **self._told)

    def fix(self, finding: Finding, sources: Sources) -> Any:
        if isinstance(self._fix, Exception):
            raise self._fix
        return self._fix


class Broken(Made):
    def check(self, evidence: Any) -> Iterator[Finding]:
        raise ZeroDivisionError("no steps")


def order(*rules: Rule, scene: Any, folder: Path) -> list[str]:
    document = diagnose(scene(50.0).evidence(folder), rules=rules).document
    assert [each.rank for each in document.findings] == list(range(1, len(document.findings) + 1))
    return [each.rule for each in document.findings]


def test_larger_and_surer_gains_come_first(scene: Any, tmp_path: Path) -> None:
    small, large = Made("small", Gain(1.0, 1.1, 1.2)), Made("large", Gain(1.5, 2.0, 2.5))
    sure, unsure = Made("sure", Gain(1.3, 1.4, 1.5)), Made("unsure", Gain(0.8, 1.4, 1.6))
    rules = (small, unsure, large, sure)
    assert order(*rules, scene=scene, folder=tmp_path) == ["large", "sure", "unsure", "small"]


def test_a_rule_comes_behind_those_it_names_in_after(scene: Any, tmp_path: Path) -> None:
    first, second = Made("first", Gain(1.2, 1.3, 1.4)), Made("second", Gain(1.5, 2.0, 2.5), after=("first", "absent"))
    assert order(second, first, scene=scene, folder=tmp_path) == ["first", "second"]


def test_what_hardly_matters_does_not_go_before_what_does(scene: Any, tmp_path: Path) -> None:
    tiny, large = Made("tiny", Gain(1.04, 1.06, 1.08)), Made("large", Gain(2.0, 2.2, 2.5), after=("tiny", "small"))
    small, other = Made("small", Gain(1.2, 1.3, 1.4)), Made("other", Gain(1.3, 1.5, 1.6))
    assert order(tiny, large, small, other, scene=scene, folder=tmp_path) == ["small", "large", "other", "tiny"]


def test_rules_that_name_each_other_are_still_ranked(scene: Any, tmp_path: Path) -> None:
    a, b = Made("a", Gain(1, 1.1, 1.2), after=("b",)), Made("b", Gain(1, 1.2, 1.3), after=("a",))
    assert order(a, b, scene=scene, folder=tmp_path) == ["b", "a"]


@pytest.mark.parametrize(("of_operators", "told"), [(False, ["half"]), (True, ["beside", "half"])])
def test_what_makes_operators_faster_explains_nothing_beside_them(
    of_operators: bool, told: list[str], scene: Any, tmp_path: Path
) -> None:
    beside, half = Made("beside", Gain(1.2, 1.4, 1.6)), Made("half", Gain(1.2, 1.3, 1.5))
    beside.fallback, half.of_operators = True, of_operators  # type: ignore[misc]
    assert order(beside, half, scene=scene, folder=tmp_path) == told


@pytest.mark.parametrize(("line", "told"), [(12, ["other"]), (21, ["beside", "other"]), (None, ["beside", "other"])])
def test_what_another_rule_finds_in_the_same_function_needs_no_fallback(
    line: int | None, told: list[str], scene: Any, tmp_path: Path
) -> None:
    beside = Made("beside", Gain(1.2, 1.6, 2.0), site=Site("train.py", 10), parameters={"within": range(10, 21)})
    other = Made("other", Gain(1.1, 1.15, 1.2), site=None if line is None else Site("train.py", line))
    beside.fallback = True  # type: ignore[misc]
    assert order(beside, other, scene=scene, folder=tmp_path) == told


def test_a_rule_that_raises_is_a_note(scene: Any, tmp_path: Path) -> None:
    rules = (Broken("broken", Gain(1, 1, 1)), Made("works", Gain(1.1, 1.2, 1.3)))
    document = diagnose(scene(50.0).evidence(tmp_path), rules=rules).document
    assert [each.rule for each in document.findings] == ["works"]
    (note,) = [note for note in document.notes if "broken" in note]
    assert "ZeroDivisionError: no steps" in note


@pytest.mark.parametrize("error", [AdvisorError("the file is gone"), KeyError("workers")])
def test_a_fix_that_raises_is_advice(error: Exception, scene: Any, tmp_path: Path) -> None:
    rules = (Made("made", Gain(1.1, 1.2, 1.3), error),)
    (entry,) = diagnose(scene(50.0).evidence(tmp_path), rules=rules).document.findings
    assert entry.fix.kind == "advice"
    assert entry.fix.why_advice


def test_what_a_cpu_could_not_tell_from_nothing_is_left_out(scene: Any, tmp_path: Path) -> None:
    rules = [
        Made("none", Gain(1.0, 1.04, 1.08)),
        Made("some", Gain(1.0, 1.06, 1.1)),
        Made("memory", Gain(0.97, 1, 1.03)),
    ]
    on_gpu = scene(50.0, "NVIDIA A100-SXM4-40GB")
    on_gpu.kernel("void at::native::vectorized_elementwise_kernel<4>", 1.0, 49.0, launched=0.5)
    for made, expected in ((scene(50.0), ["some", "memory"]), (on_gpu, ["some", "none", "memory"])):
        document = diagnose(made.evidence(tmp_path), rules=rules).document
        assert [each.rule for each in document.findings] == expected


def test_nothing_found_is_said_with_its_reason(scene: Any, tmp_path: Path) -> None:
    document = diagnose(scene(50.0).evidence(tmp_path), rules=()).document
    assert document.verdict.startswith("nothing worth changing: ")


def test_document_meets_its_schema(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3)
    evidence = made.evidence(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("\n" * 7 + "loader = DataLoader(data, batch_size=32)\n")
    made.record.cwd = str(tmp_path)
    made.record.loaders[0].site = Site(str(script), 8)
    diagnosis = diagnose(evidence)
    document = json.loads(encode(diagnosis.document))
    jsonschema.validate(document, json_schema())
    entry = document["findings"][0]
    assert (entry["rule"], entry["file"], entry["line"]) == ("loader-workers", "train.py", 8)
    assert entry["fix"]["diff"].startswith("--- a/train.py\n")
    assert isinstance(diagnosis.found[0].fix, Edit)


def test_arguments_and_variables_are_said_in_words() -> None:
    argument = fix_document(Argument({"--batch-size": "64", "--cuda": ""}, "Warm up."), "/")
    assert argument.text == "Run the script with --batch-size 64 --cuda. Warm up."
    variable = fix_document(Variable({"OMP_NUM_THREADS": "2"}), "/")
    assert "OMP_NUM_THREADS=2" in variable.text


def test_rank_of_nothing_is_nothing() -> None:
    assert rank(()) == []


def test_one_wait_for_data_in_verdict_and_breakdown(scene: Any, tmp_path: Path) -> None:
    """A profiler slows a loader of many small operators: what was timed without it is what is reported."""
    made = scene(50)
    loader = made.loader(wait_ms=20, fetch_ms=20, cpu_ms=20)
    made.operator("aten::addmm", 20, 50)
    loader.wait_s = 0.005
    made.record.timing.loader_wait_s = [0.005] * 40
    evidence = made.evidence(tmp_path)
    document = diagnose(evidence).document
    assert evidence.breakdown.share("loader") == pytest.approx(0.4)
    assert document.breakdown["loader"] == pytest.approx(0.1)
    assert document.breakdown["forward"] == pytest.approx(0.9)
    assert sum(document.breakdown.values()) == 1.0
    assert "10% waits for data" in evidence.verdict
