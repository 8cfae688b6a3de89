"""What counts as found, as missed, as a false alarm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.expectations import Case, Found
from tests.accuracy.judge import Said, count, judge, judge_loosely, total

WORKERS, SYNC = Found("loader-workers", 10, "edit"), Found("host-sync", 0, "advice")
CASE = Case(
    folder=Path("some"),
    about="",
    kind="planted",
    args=(),
    found=(WORKERS, SYNC),
    planted=(),
    absent=("zero-grad",),
    allowed=("compile",),
    needs=(),
    lacks=(),
    requires=(),
    waits_for="",
    quick=False,
)


def said(rule: str, line: int = 0, fix: str = "edit", file: str | None = "script.py") -> Said:
    return Said((rule,), line, file, fix)


def test_everything_expected_and_nothing_else_is_right() -> None:
    judged = judge(CASE, [said("host-sync", 3, "advice"), said("loader-workers", 10)])
    assert [expected for expected, _ in judged.hits] == [WORKERS, SYNC]
    assert not judged.missed and not judged.false and not judged.beside


def test_finding_elsewhere_is_found_and_not_in_its_place() -> None:
    one = count([("some", judge(CASE, [said("loader-workers", 11), said("host-sync", 99, "edit")]))])
    assert (one["loader-workers"].recall, one["loader-workers"].place) == (1.0, 0.0)
    # Its line does not matter; its fix is of another kind than expected.
    assert one["host-sync"].place is None
    assert (one["loader-workers"].fix, one["host-sync"].fix) == (1.0, 0.0)


def test_line_of_another_file_is_another_place() -> None:
    assert said("loader-workers", 10).is_at(WORKERS)
    assert not said("loader-workers", 10, file="data.py").is_at(WORKERS)
    assert said("loader-workers", 10, file="./data.py").is_at(replace(WORKERS, file="data.py"))
    assert not said("loader-workers", 10, file=None).is_at(WORKERS)


def test_second_finding_of_an_expected_rule_is_a_false_alarm() -> None:
    judged = judge(CASE, [said("loader-workers", 40), said("loader-workers", 10), said("host-sync")])
    assert [each.line for each in judged.false] == [40]
    assert judged.hits[0][1].line == 10


def test_two_findings_of_one_rule_are_matched_by_their_places() -> None:
    case = replace(CASE, found=(WORKERS, replace(WORKERS, line=20)))
    judged = judge(case, [said("loader-workers", 20), said("loader-workers", 10)])
    assert [(expected.line, one.line) for expected, one in judged.hits] == [(10, 10), (20, 20)]


def test_what_is_allowed_counts_neither_way() -> None:
    one = count([("some", judge(CASE, [said("compile", 5)]))])["compile"]
    assert (one.beside, one.false, one.precision, one.recall) == (1, 0, None, None)


def test_what_is_neither_expected_nor_allowed_is_a_false_alarm() -> None:
    judged = judge(CASE, [said("zero-grad"), said("batch-size")])
    assert {each.rule for each in judged.false} == {"zero-grad", "batch-size"}
    # The case says of one that it must not be there, of the other nothing.
    assert [each.rule for each in judged.unlabelled] == ["batch-size"]
    assert judge(replace(CASE, absent=("*",), found=()), [said("batch-size")]).unlabelled == ()


def test_precision_and_recall_over_cases() -> None:
    counts = count(
        [
            ("one", judge(CASE, [said("loader-workers", 10), said("zero-grad")])),
            ("two", judge(CASE, [said("loader-workers", 9), said("host-sync")])),
            ("three", judge(replace(CASE, found=()), [said("loader-workers", 10)])),
        ]
    )
    workers = counts["loader-workers"]
    assert workers.precision == pytest.approx(2 / 3)
    assert (workers.recall, workers.place) == (1.0, 0.5)
    assert counts["host-sync"].recall == 0.5 and counts["host-sync"].where_missed == ["one"]
    whole = total(counts.values())
    assert (whole.hits, whole.missed, whole.false) == (3, 1, 2)
    assert whole.where_false == ["three", "one"]


def test_sentence_that_may_mean_several_rules_is_right_when_one_of_them_is() -> None:
    loose = Said(("loader-workers", "slow-transform"))
    assert [expected for expected, _ in judge_loosely(CASE, [loose, loose]).hits] == [WORKERS]
    assert judge_loosely(CASE, [loose]).false == ()
    clean = replace(CASE, found=())
    assert judge_loosely(clean, [loose, loose]).false == (loose,)
    assert judge_loosely(replace(clean, allowed=("slow-transform",)), [loose]).beside == (loose,)
