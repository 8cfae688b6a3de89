"""``Offer``: a fix that could be tried next, and which of them may be, after what was tried before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator
from dataclasses import dataclass

from advisor.diagnose import Diagnosed, Diagnosis
from advisor.findings import FindingDocument, FixDocument
from advisor.rule import Advice
from advisor.rulebook import load_rules
from advisor.session import Progress


@dataclass(frozen=True)
class Offer:
    """A finding of the last diagnosis: itself, how a report says it, and what it is remembered by.

    ``place`` is the rule and where its fix goes; ``fix`` is the very change.
    """

    diagnosed: Diagnosed
    document: FindingDocument
    place: str
    fix: str


def offers(diagnosis: Diagnosis) -> list[Offer]:
    """Every finding of a diagnosis, in its order."""
    pairs = list(zip(diagnosis.found, diagnosis.document.findings, strict=True))
    places = [_place(*pair) for pair in pairs]
    # Several in one function are told apart by their order, not by their lines: those move with the fixes above.
    by_line = sorted(range(len(pairs)), key=lambda at: (places[at], pairs[at][1].line or 0))
    numbers = {at: by_line.index(at) - [places[each] for each in by_line].index(places[at]) for at in by_line}
    return [
        Offer(diagnosed, document, f"{places[at]}#{numbers[at]}", fix_key(diagnosed.rule.id, document.fix))
        for at, (diagnosed, document) in enumerate(pairs)
    ]


def _place(diagnosed: Diagnosed, document: FindingDocument) -> str:
    site = diagnosed.finding.site
    return f"{diagnosed.rule.id}@{document.file or ''}:{site.function if site is not None else ''}"


def open_offers(diagnosis: Diagnosis, progress: Progress, passed: Container[str] = ()) -> Iterator[Offer]:
    """What may be tried now, most promising first.

    Left out are advice, what does not promise to be faster, places in `passed`, what the user declined, what excludes a
    fix that was kept, what was tried since the last fix was kept – with the same script it would end the same –, and
    what crashed or changed the numbers, for good.
    """
    kept = [trial.rule for trial in progress.trials if trial.status == "kept"]
    excluded = {other for each in load_rules() if each.id in kept for other in each.conflicts}
    done = [attempt for attempt in progress.attempts if attempt.done]
    for offer in offers(diagnosis):
        rule = offer.diagnosed.rule
        if offer.diagnosed.finding.gain.likely <= 1.0:  # no time to be measured: it is for something else, memory
            continue
        if isinstance(offer.diagnosed.fix, Advice) or offer.place in progress.declined or offer.place in passed:
            continue
        if rule.id in excluded or set(rule.conflicts) & set(kept):
            continue
        if any(each.final and each.fix == offer.fix for each in done):
            continue
        if any(each.place == offer.place and each.kept_before == len(kept) for each in done):
            continue
        yield offer


def fix_key(rule: str, fix: FixDocument) -> str:
    """What a fix changes, whatever line it is at: the same change has the same key before and after other fixes."""
    lines = [line for line in fix.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    content = json.dumps([rule, lines, sorted(fix.arguments.items()), sorted(fix.environment.items())])
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:16]
