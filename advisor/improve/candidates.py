"""``Candidate``: a version of the script to try for an offer: sizes are searched, memory is made where it ran out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advisor.compare import compare_pairs, cost, costs
from advisor.diagnose import fix_document, predicted
from advisor.evidence import Evidence
from advisor.findings import FixDocument, Predicted, Searched
from advisor.improve.bench import Bench, Say, TrialError, Version
from advisor.improve.offers import Offer
from advisor.improve.state import State
from advisor.improve.trial import throughput
from advisor.rule import Advice, Finding, Safety
from advisor.rulebook import load_rules
from advisor.run import Run

# A device whose memory is fuller than this leaves nothing for a longer sequence or a fragmented cache.
_FULLEST = 0.9


@dataclass(frozen=True)
class Candidate:
    """What is tried of an offer: the script with it, and how to say it."""

    title: str
    state: State
    fix: FixDocument
    predicted: Predicted
    safety: Safety


@dataclass(frozen=True)
class Candidates:
    """Makes candidates. ``name`` is how a folder is written down; ``root`` what diffs are relative to."""

    bench: Bench
    root: str
    min_gain: float
    say: Say
    name: Callable[[Path], str]

    def of(self, current: Version, offer: Offer, finding: Finding | None = None) -> Candidate:
        """The script with the offer's fix, or with the one for another finding of its rule (one size of several).

        Raises AdvisorError when nothing but advice comes of that, and whatever the rule raises.
        """
        now, each = current.state, offer.diagnosed
        chosen = finding or each.finding
        fix = each.fix if chosen is each.finding else each.rule.fix(chosen, now.sources)
        gain = predicted(chosen.gain, current.record.timing.step_s)
        return Candidate(chosen.title, now.apply(fix), fix_document(fix, self.root), gain, each.safety)

    def best(self, current: Version, offer: Offer, folder: Path, searched: list[Searched]) -> Candidate:
        """The offer's fix; of several sizes the fastest: in order, for as long as each is faster than the one before.

        What was tried, in folders below `folder`, goes into `searched`. Raises TrialError when not even the first size
        runs, or fits.
        """
        found = self.of(current, offer)
        choices = offer.diagnosed.rule.search(offer.diagnosed.finding)
        speedup = 0.0
        for number, finding in enumerate(choices if len(choices) > 1 else (), 1):
            try:
                candidate = self.of(current, offer, finding)
            except Exception:
                break  # no edit makes it that large, or the rule is at fault: what there is so far counts
            where = folder / str(number)
            self.say(f"searching: {candidate.title}")
            try:
                run = self.bench.quick(candidate.state, where, current)
            except TrialError as error:
                searched.append(Searched(candidate.title, self.name(where), error=str(error)))
                if not speedup:
                    raise
                break
            memory = _memory_share(run)
            step_ms = cost(run.record).step_s * 1e3
            searched.append(Searched(candidate.title, self.name(where), throughput([run]), step_ms, memory))
            if memory is not None and memory > _FULLEST:
                if not speedup:
                    raise TrialError(f"it takes {memory:.0%} of the device's memory", "oom")
                break
            one = compare_pairs([costs(current.record, run.record)]).speedup
            if one < speedup * (1 + self.min_gain):
                break
            speedup, found = one, candidate
        return found

    def lighter(self, current: Version, offer: Offer, evidence: Evidence) -> Candidate | None:
        """The offer's fix together with one that takes memory away; None where no rule has such a one.

        None too where samples are not known: a step of half the batch says nothing by itself.
        """
        now, rule = current.state, offer.diagnosed.rule
        if not rule.takes_memory or current.record.timing.samples_per_step is None:
            return None
        for other in load_rules():
            try:
                finding = other.relieve(evidence)
                relief = other.fix(finding, now.sources) if finding is not None else Advice("")
                if isinstance(relief, Advice):
                    continue
                lighter = now.apply(relief)
                fix = rule.fix(offer.diagnosed.finding, lighter.sources)
            except Exception:
                continue  # a rule's fault must not end the session
            if isinstance(fix, Advice):
                continue
            patched = lighter.apply(fix)
            one, two = fix_document(fix, self.root), fix_document(relief, self.root)
            both = FixDocument(
                "edit" if "edit" in (one.kind, two.kind) else one.kind,
                f"{one.text} {two.text}",
                diff=patched.diff_from(now, self.root),
                arguments={**one.arguments, **two.arguments},
                environment={**one.environment, **two.environment},
            )
            title = f"{offer.document.title}, with a smaller batch"
            # Another batch is another training, whatever the fix itself is.
            return Candidate(title, patched, both, offer.document.predicted, Safety.BEHAVIOUR)
        return None


def _memory_share(run: Run) -> float | None:
    memory = run.record.memory
    return memory.peak_reserved / memory.capacity if memory.peak_reserved is not None and memory.capacity else None
