"""The page says what was found out, and names what went wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fixtures.expectations import Case, Found
from tests.accuracy.child import Answer, Measurement, Proposal
from tests.accuracy.peers import PEERS, Heard, Saying
from tests.accuracy.results import CaseResult, duels, fixes, gains
from tests.accuracy.table import Page, as_json, render

LOADER = Case(
    folder=Path("slow_loader"),
    about="",
    kind="planted",
    args=(),
    found=(Found("loader-workers", 7, "edit"),),
    planted=(),
    absent=(),
    allowed=(),
    needs=(),
    lacks=(),
    requires=(),
    waits_for="",
    quick=False,
)
CLEAN = replace(LOADER, folder=Path("tidy"), kind="clean", found=(), absent=("loader-workers",))
WORKERS = Proposal("loader-workers", "script.py", 7, "edit", 1.5, 2.0, 2.5, applies=True, runs=True)
# Predicted 1.5 to 2.5, measured 2.2; and 1.1 to 1.3, measured 1.0.
GOOD = Measurement("loader-workers", 1.5, 2.0, 2.5, 2.2, 2.1, 2.3, 3)
BAD = Measurement("batch-size", 1.1, 1.2, 1.3, 1.0, 0.9, 1.1, 3)
PATTERNS, TB, TORCHFIX, TRACEML = PEERS


def result(case: Case, *proposals: Proposal, **heard: Heard) -> CaseResult:
    names = {"patterns": PATTERNS.name, "torchfix": TORCHFIX.name, "traceml": TRACEML.name}
    return CaseResult(case, Answer(1.0, proposals=list(proposals)), {names[name]: each for name, each in heard.items()})


def test_page_counts_what_was_found_missed_and_said_for_nothing() -> None:
    broken = replace(LOADER, folder=Path("slow_too"))
    wrong = Proposal("zero-grad", "script.py", 3, "edit", 1.0, 1.1, 1.2, applies=False, trouble="patch does not apply")
    page = render(
        Page([result(LOADER, WORKERS), result(broken), result(CLEAN, wrong)], out={"amx": "no such processor"})
    )
    assert "| loader-workers | 2 | 100% (1/1) | 50% (1/2) | 100% (1/1) | 100% (1/1) | 100% (1/1) | 100% (1/1) |" in page
    assert "| zero-grad | 0 | 0% (0/1) | – | – | – | 0% (0/1) | 0% (0/1) |" in page
    assert "| **all** | 2 | 50% (1/2) | 50% (1/2) |" in page
    assert "- loader-workers: slow_too" in page
    assert "- zero-grad: tidy*" in page, "the case says nothing of that rule"
    assert "- tidy, zero-grad: patch does not apply" in page
    assert "- amx: no such processor" in page


def test_rule_that_is_still_to_come_is_said_to_be() -> None:
    page = Page([result(LOADER)], known=frozenset(["zero-grad"]))
    assert "- loader-workers (there is no such rule yet): slow_loader" in render(page)
    assert "- loader-workers: slow_loader" in render(replace(page, known=frozenset(["loader-workers"])))


def test_case_that_failed_has_missed_what_it_expects() -> None:
    failed = CaseResult(LOADER, Answer(1.0, error="the script failed"))
    page = Page([failed])
    assert as_json(page)["all"]["recall"] == 0.0  # type: ignore[index]
    assert "- slow_loader: the script failed" in render(page)


def test_page_says_that_the_machine_was_not_quiet() -> None:
    busy = replace(result(LOADER, WORKERS), answer=Answer(1.0, proposals=[WORKERS], busy=1.7))
    assert "when 1 of the cases began, other programs kept up to 1.7 cores busy" in render(Page([busy, result(CLEAN)]))
    assert "quiet" not in render(Page([result(LOADER, WORKERS)]))


def test_gains_are_held_to_their_ranges() -> None:
    measured = replace(result(LOADER, WORKERS), measured=(GOOD, BAD))
    assert gains([measured]).inside == 0.5
    assert gains([measured], "loader-workers").inside == 1.0
    assert gains([measured]).correlation is None, "two are too few"
    text = render(Page([measured], gains=True))
    assert "- slow_loader, batch-size: 1.10–1.30 predicted, 1.00 measured (0.90–1.10)" in text
    wide = replace(measured, measured=(Measurement("loader-workers", 1.0, 1.5, 2.1, 1.5, 1.4, 1.6, 3),))
    assert gains([wide]).inside == 0.0


def test_fixes_that_were_not_come_to_do_not_run() -> None:
    advice = Proposal("host-sync", "script.py", 3, "advice", 1.0, 1.1, 1.2)
    broken = Proposal("zero-grad", "script.py", 3, "edit", 1.0, 1.1, 1.2, applies=False)
    tried = fixes([result(LOADER, WORKERS, advice, broken)])
    assert (tried.tried, tried.applied, tried.ran) == (2, 1, 1)


def test_peer_is_judged_beside_us_on_the_cases_that_it_could_judge() -> None:
    tor401 = Heard([Saying("TOR401", "script.py:7:1"), Saying("TOR001", "script.py:1:1: deprecated")])
    results = [
        result(LOADER, WORKERS, torchfix=tor401, traceml=Heard(error="status 1: no torch")),
        result(CLEAN, torchfix=tor401),
    ]
    (duel,) = duels(results, TORCHFIX)
    assert (duel.rule, duel.theirs.precision, duel.theirs.recall) == ("loader-workers", 0.5, 1.0)
    assert (duel.ours.precision, duel.ours.recall) == (1.0, 1.0)
    assert duels(results, TRACEML) == []
    text = render(Page(results, peers={TORCHFIX.name: "0.7.0", TRACEML.name: "0.5.0"}))
    assert "It could not judge slow_loader: status 1: no torch." in text
    assert "**pattern matcher** could not run: torch is not installed" in text


def test_verdict_of_a_part_of_the_step_is_right_when_a_rule_of_that_part_is() -> None:
    bound = Heard([Saying("INPUT_BOUND", "Input Wait took 64% of Step Time.")])
    late = replace(LOADER, folder=Path("late"), found=(Found("slow-transform", 3, "advice"),))
    found = {duel.rule: duel.theirs for duel in duels([result(late, traceml=bound)], TRACEML)}
    assert found["slow-transform"].recall == 1.0
    assert all(one.precision in (None, 1.0) for one in found.values())
    assert TRACEML.said(Heard([Saying("COMPUTE_BOUND", ""), Saying("INSUFFICIENT_STEP_TIME_DATA", "")])) == []


def test_figures_are_json() -> None:
    page = Page([replace(result(LOADER, WORKERS), measured=(GOOD,))], peers={peer.name: "1" for peer in PEERS})
    assert json.loads(json.dumps(as_json(page)))["rules"]["loader-workers"]["inside"] == 1.0
