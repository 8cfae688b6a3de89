"""What a tool says of a case beside what the case expects: hits, misses, false alarms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fixtures.expectations import Case, Found

from .scores import share


@dataclass(frozen=True)
class Said:
    """One thing that was said of a script: the rule, the place (the file relative to its folder), the kind of fix.

    ``rules`` are those that would each make it true, where a tool speaks less precisely than ours; the first one is
    blamed when none does.
    """

    rules: tuple[str, ...]
    line: int | None = None
    file: str | None = None
    fix: str = ""

    @property
    def rule(self) -> str:
        return self.rules[0]

    def is_at(self, expected: Found) -> bool:
        """Whether it points to the expected line; a place that is not asked for is right."""
        if expected.line == 0:
            return True
        return self.line == expected.line and self.file is not None and os.path.normpath(self.file) == expected.file


@dataclass(frozen=True)
class Judgement:
    """One case judged: what was expected with what was said of it, what was not found, and what should not be there.

    ``beside`` is true and was not asked for. ``unlabelled`` are those of the false alarms that the case does not name
    in ``absent`` either: a reader of the case may find some of them true.
    """

    hits: tuple[tuple[Found, Said], ...] = ()
    missed: tuple[Found, ...] = ()
    beside: tuple[Said, ...] = ()
    false: tuple[Said, ...] = ()
    unlabelled: tuple[Said, ...] = ()


def judge(case: Case, said: Sequence[Said]) -> Judgement:
    """Match what was said of `case` with what it expects, in its place first.

    Strict: what is neither expected nor allowed is a false alarm, and so is a second finding of an expected rule.
    """
    left, hits = list(said), {}
    for in_place in (True, False):
        for number, expected in enumerate(case.found):
            if number in hits:
                continue
            at = next(
                (one for one in left if expected.rule in one.rules and (one.is_at(expected) or not in_place)), None
            )
            if at is not None:
                hits[number] = at
                left.remove(at)
    beside = tuple(one for one in left if set(one.rules) & set(case.allowed))
    false = tuple(one for one in left if one not in beside)
    return Judgement(
        hits=tuple((case.found[number], hits[number]) for number in sorted(hits)),
        missed=tuple(expected for number, expected in enumerate(case.found) if number not in hits),
        beside=beside,
        false=false,
        unlabelled=tuple(one for one in false if not {*case.absent} & {*one.rules, "*"}),
    )


def judge_loosely(case: Case, said: Iterable[Said]) -> Judgement:
    """As :func:`judge`, of a tool that names no place, may repeat itself, and may mean several rules by one sentence.

    Each expected finding whose rule is among the meant ones is a hit; a sentence is a false alarm, once, when none of
    its rules is expected or allowed.
    """
    distinct = list(dict.fromkeys(Said(one.rules) for one in said))
    hits = []
    for expected in case.found:
        meant = next((one for one in distinct if expected.rule in one.rules), None)
        if meant is not None:
            hits.append((expected, meant))
    wanted = {expected.rule for expected in case.found}
    left = [one for one in distinct if not set(one.rules) & wanted]
    beside = tuple(one for one in left if set(one.rules) & set(case.allowed))
    found = {expected for expected, _ in hits}
    return Judgement(
        hits=tuple(hits),
        missed=tuple(expected for expected in case.found if expected not in found),
        beside=beside,
        false=tuple(one for one in left if one not in beside),
    )


@dataclass
class Count:
    """What came of one rule over many cases. ``placed`` counts hits in their place, ``asked`` those that have one."""

    hits: int = 0
    missed: int = 0
    beside: int = 0
    false: int = 0
    placed: int = 0
    asked: int = 0
    fixed: int = 0  # hits whose fix is of the expected kind
    where_missed: list[str] = field(default_factory=list)
    where_false: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float | None:
        """Of what was said of this rule, how much is expected; what is beside the point counts neither way."""
        return share(self.hits, self.hits + self.false)

    @property
    def recall(self) -> float | None:
        """Of what is there, how much was found."""
        return share(self.hits, self.hits + self.missed)

    @property
    def place(self) -> float | None:
        """Of the hits whose place matters, how many point to it."""
        return share(self.placed, self.asked)

    @property
    def fix(self) -> float | None:
        """Of the hits, how many have the kind of fix that was expected."""
        return share(self.fixed, self.hits)


def count(judged: Iterable[tuple[str, Judgement]]) -> dict[str, Count]:
    """By rule, over (name of the case, its judgement)."""
    counts: dict[str, Count] = {}

    def of(rule: str) -> Count:
        return counts.setdefault(rule, Count())

    for name, each in judged:
        for expected, said in each.hits:
            one = of(expected.rule)
            one.hits += 1
            one.asked += expected.line != 0
            one.placed += expected.line != 0 and said.is_at(expected)
            one.fixed += said.fix == expected.fix
        for expected in each.missed:
            of(expected.rule).missed += 1
            of(expected.rule).where_missed.append(name)
        for said in each.beside:
            of(said.rule).beside += 1
        for said in each.false:
            of(said.rule).false += 1
            of(said.rule).where_false.append(name)
    return counts


def total(counts: Iterable[Count]) -> Count:
    """All rules together."""
    whole = Count()
    for one in counts:
        for name, value in vars(one).items():
            setattr(whole, name, getattr(whole, name) + value)
    return whole
