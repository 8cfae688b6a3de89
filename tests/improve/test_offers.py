"""What may be tried next, after what was tried before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from advisor.diagnose import Diagnosed, Diagnosis, fix_document, predicted
from advisor.findings import FindingDocument, Findings, Predicted, Range, Trial
from advisor.harness.layout import Site
from advisor.improve.offers import Offer, offers, open_offers
from advisor.rule import Advice, Argument, Finding, Gain
from advisor.rulebook import load_rules
from advisor.session import Attempt, Progress

RULES = {rule.id: rule for rule in load_rules()}


def diagnosis(*found: tuple[str, Any], line: int = 3) -> Diagnosis:
    """Findings of rules with their fixes, all in one function."""
    entries, documents = [], []
    for rule, fix in found:
        finding = Finding(rule, rule, "", Gain(1.1, 1.2, 1.3), {}, Site("/x/train.py", line, function="main"))
        diagnosed = Diagnosed(RULES[rule], finding, fix)
        entries.append(diagnosed)
        documents.append(
            FindingDocument(
                1, rule, rule, "", "exact", {}, predicted(finding.gain, 0.1), fix_document(fix, "/x"), file="train.py"
            )
        )
    document = Findings("", "train.py", 1.0, None, "cpu", {}, documents)
    return Diagnosis(document, tuple(entries), "/x")


def tried(progress: Progress, offer: Offer, status: str, final: bool = False) -> Progress:
    """The progress with one more trial of that status."""
    number = len(progress.trials) + 1
    kept = sum(trial.status == "kept" for trial in progress.trials)
    gain = Predicted(Range(1.0, 1.1, 1.2))
    document = offer.document
    trial = Trial(
        number,
        document.rule,
        document.title,
        "exact",
        msgspec.convert(status, Any),
        "",
        gain,
        document.fix,
        f"{number}",
    )
    attempt = Attempt(number, offer.place, offer.fix, kept, document, final=final, done=True)
    return Progress([*progress.trials, trial], [*progress.attempts, attempt])


def names(found: Diagnosis, progress: Progress) -> list[str]:
    return [offer.diagnosed.rule.id for offer in open_offers(found, progress)]


WORKERS = ("loader-workers", Argument({"--workers": "4"}))
AUTOCAST = ("amp-autocast", Argument({"--amp": ""}))


def test_advice_is_not_offered() -> None:
    assert names(diagnosis(WORKERS, ("compile", Advice("Do it."))), Progress()) == ["loader-workers"]


def test_what_saves_memory_and_no_time_is_not_tried() -> None:
    found = diagnosis(AUTOCAST, WORKERS)
    memory = replace(found.found[0], finding=replace(found.found[0].finding, gain=Gain(0.97, 1.0, 1.03)))
    assert names(replace(found, found=(memory, found.found[1])), Progress()) == ["loader-workers"]


@pytest.mark.parametrize("status", ["reverted", "inconclusive", "failed"])
def test_what_brought_nothing_is_offered_again_once_another_was_kept(status: str) -> None:
    found = diagnosis(AUTOCAST, WORKERS)
    autocast, workers = offers(found)
    progress = tried(Progress(), autocast, status)
    assert names(found, progress) == ["loader-workers"]
    progress = tried(progress, workers, "kept")
    assert names(diagnosis(AUTOCAST, line=9), progress) == ["amp-autocast"], "though its line has moved"


def test_what_crashed_is_never_offered_again() -> None:
    found = diagnosis(AUTOCAST, WORKERS)
    autocast, workers = offers(found)
    progress = tried(tried(Progress(), autocast, "failed", final=True), workers, "kept")
    assert names(found, progress) == ["loader-workers"]
    # Another change of the same rule is another matter.
    other = diagnosis(("amp-autocast", Argument({"--fp16": ""})))
    assert names(other, progress) == ["amp-autocast"]


def test_what_was_declined_or_passed_is_not_offered() -> None:
    found = diagnosis(AUTOCAST, WORKERS)
    progress = Progress(declined=[offers(found)[0].place])
    assert names(found, progress) == ["loader-workers"]
    assert not list(open_offers(found, progress, {offers(found)[1].place}))


def test_two_findings_of_one_rule_in_one_function_are_told_apart() -> None:
    found = diagnosis(WORKERS, ("loader-workers", Argument({"--test-workers": "4"})))
    first, second = offers(found)
    assert first.place != second.place
    assert names(found, tried(Progress(), first, "reverted")) == ["loader-workers"]


def test_a_fix_that_excludes_a_kept_one_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosis(AUTOCAST, WORKERS)
    progress = tried(Progress(), offers(found)[1], "kept")
    assert "amp-autocast" in names(found, progress)
    monkeypatch.setattr(type(RULES["amp-autocast"]), "conflicts", ("loader-workers",))
    assert "amp-autocast" not in names(found, progress)
    monkeypatch.setattr(type(RULES["amp-autocast"]), "conflicts", ())
    monkeypatch.setattr(type(RULES["loader-workers"]), "conflicts", ("amp-autocast",))
    assert "amp-autocast" not in names(found, progress)
