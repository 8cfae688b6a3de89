"""Which fixes are tried: --accept, and the answers at a terminal."""

from __future__ import annotations

import pytest

from advisor.errors import AdvisorError
from advisor.improve.accept import Answer, Policy
from advisor.rule import Safety

RULES = ("amp-autocast", "loader-workers")


def decide(accept: str, rule: str, safety: Safety, *answers: Answer) -> Answer:
    given = iter(answers)
    return Policy.parse(accept, RULES).decide(rule, safety, (lambda: next(given)) if answers else None)[0]


def test_safe_means_exact() -> None:
    assert decide("safe", "loader-workers", Safety.EXACT) is Answer.YES
    assert decide("safe", "amp-autocast", Safety.NUMERIC) is Answer.NO
    assert decide("safe", "batch-size", Safety.BEHAVIOUR) is Answer.NO


def test_all_means_all_and_none_means_none() -> None:
    assert decide("all", "batch-size", Safety.BEHAVIOUR) is Answer.YES
    assert decide("none", "loader-workers", Safety.EXACT) is Answer.NO


def test_rules_by_name_whatever_their_safety() -> None:
    assert decide("amp-autocast, loader-workers", "amp-autocast", Safety.NUMERIC) is Answer.YES
    assert decide("amp-autocast", "loader-workers", Safety.EXACT) is Answer.NO


@pytest.mark.parametrize(
    ("accept", "said"),
    [
        ("loader-worker", "did you mean loader-workers?"),
        ("loader-workers,amp-autocats", "did you mean amp-autocast?"),
        ("", "it names no rule"),
        ("yes", "`advisor rules` lists them all"),
        ("safe,all", "there is no rule safe; `advisor rules` lists them all"),
    ],
)
def test_an_unknown_name_says_what_there_is(accept: str, said: str) -> None:
    with pytest.raises(AdvisorError, match="Say ask, safe, all, none, or names of rules") as caught:
        Policy.parse(accept, RULES)
    assert said in str(caught.value)


def test_ask_asks_and_without_a_terminal_tries_nothing() -> None:
    assert decide("ask", "loader-workers", Safety.EXACT, Answer.YES) is Answer.YES
    assert decide("ask", "loader-workers", Safety.EXACT, Answer.QUIT) is Answer.QUIT
    assert decide("ask", "loader-workers", Safety.EXACT) is Answer.NO


def test_all_the_exact_ones_asks_no_more() -> None:
    answer, later = Policy("ask").decide("loader-workers", Safety.EXACT, lambda: Answer.ALL_EXACT)
    assert (answer, later.mode) == (Answer.YES, "safe")
    answer, later = Policy("ask").decide("amp-autocast", Safety.NUMERIC, lambda: Answer.ALL_EXACT)
    assert (answer, later.mode) == (Answer.NO, "safe")
