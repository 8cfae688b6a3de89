"""All that was found out about the cases, judged: what the table is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from fixtures.expectations import Case

from .child import Answer, Measurement, Proposal
from .judge import Count, Judgement, Said, count, judge, judge_loosely
from .peers import Heard, Peer
from .scores import Interval, holds, interval_score, mean, share, spearman


@dataclass(frozen=True)
class CaseResult:
    """One case: what the advisor said of it, what peers did, by name, and what its fixes were measured to bring."""

    case: Case
    answer: Answer
    heard: dict[str, Heard] = field(default_factory=dict)
    measured: tuple[Measurement, ...] = ()

    @property
    def judgement(self) -> Judgement:
        return judge(self.case, [said(each) for each in self.answer.proposals])

    @property
    def fixes(self) -> list[Proposal]:
        """What was proposed with a fix that can be tried."""
        return [each for each in self.answer.proposals if each.fix != "advice"]


def said(proposal: Proposal) -> Said:
    return Said((proposal.rule,), proposal.line, proposal.file, proposal.fix)


@dataclass(frozen=True)
class Fixes:
    """Of the proposed fixes: how many were tried, how many diffs apply, how many patched scripts run."""

    tried: int = 0
    applied: int = 0
    ran: int = 0

    @property
    def applies(self) -> float | None:
        return share(self.applied, self.tried)

    @property
    def runs(self) -> float | None:
        return share(self.ran, self.tried)


@dataclass(frozen=True)
class Gains:
    """Predicted gains beside measured ones."""

    measured: tuple[Measurement, ...] = ()

    @property
    def inside(self) -> float | None:
        """Share of measured speedups inside the predicted range."""
        return share(sum(holds(_range(each), each.speedup) for each in self.measured), len(self.measured))

    @property
    def score(self) -> float | None:
        """The mean interval score."""
        return mean([interval_score(each.low, each.high, each.speedup) for each in self.measured])

    @property
    def correlation(self) -> float | None:
        """Spearman's, between likely and measured speedups."""
        return spearman([each.likely for each in self.measured], [each.speedup for each in self.measured])


def _range(each: Measurement) -> Interval:
    return Interval(each.low, each.likely, each.high)


def counts(results: list[CaseResult]) -> dict[str, Count]:
    """By rule, over the cases that could be profiled; one that failed has found nothing."""
    return count((result.case.name, result.judgement) for result in results)


def fixes(results: list[CaseResult], rule: str | None = None) -> Fixes:
    """Of one rule's, or of all."""
    tried = [each for result in results for each in result.fixes if rule in (None, each.rule)]
    return Fixes(len(tried), sum(each.applies is True for each in tried), sum(each.runs is True for each in tried))


def gains(results: list[CaseResult], rule: str | None = None) -> Gains:
    """Of one rule's fixes, or of all."""
    return Gains(tuple(each for result in results for each in result.measured if rule in (None, each.rule)))


@dataclass(frozen=True)
class Duel:
    """A peer and the advisor on one rule, over the cases that both judged."""

    rule: str
    theirs: Count
    ours: Count


def duels(results: list[CaseResult], peer: Peer) -> list[Duel]:
    """For each rule that `peer` has a word on and that is expected, or was said, anywhere."""
    both = [result for result in results if peer.name in result.heard and not _failed(result.heard[peer.name])]
    theirs = count(
        (result.case.name, judge_loosely(result.case, peer.said(result.heard[peer.name]))) for result in both
    )
    ours = counts(both)
    found = [Duel(rule, theirs.get(rule, Count()), ours.get(rule, Count())) for rule in peer.rules]
    return [duel for duel in found if any((each.hits, each.missed, each.false) != (0, 0, 0) for each in _sides(duel))]


def _sides(duel: Duel) -> tuple[Count, Count]:
    return duel.theirs, duel.ours


def _failed(heard: Heard) -> bool:
    """A tool that failed in part and said something all the same is judged by what it said."""
    return bool(heard.error) and not heard.sayings


def unheard(results: list[CaseResult], peer: Peer) -> list[tuple[str, str]]:
    """Cases that `peer` could not judge, and why."""
    heard = [(result.case.name, result.heard[peer.name]) for result in results if peer.name in result.heard]
    return [(name, each.error) for name, each in heard if _failed(each)]
