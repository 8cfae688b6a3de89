"""The findings document of a session whose fixes were tried: what became of each, and what it came to in all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from advisor.compare import cost
from advisor.diagnose import Diagnosis
from advisor.findings import FindingDocument, Findings, Outcome, Range, Trial
from advisor.improve.bench import Version
from advisor.improve.offers import offers
from advisor.improve.trial import throughput
from advisor.session import Direct, Progress


@dataclass(frozen=True)
class Ends:
    """The script as it was and with all that was kept, each with its diagnosis."""

    baseline: Version
    before: Diagnosis
    current: Version
    now: Diagnosis


def session_document(ends: Ends, progress: Progress, ended: str) -> Findings:
    """The baseline's findings with what became of them, those found later, and the outcome (None: nothing tried)."""
    base, findings = ends.before.document, _findings(ends.now, progress)
    outcome = _outcome(ends, progress, ended) if progress.trials else None
    notes = [*base.notes]
    if ends.current is not ends.baseline and any(each.status == "proposed" and each.fix.diff for each in findings):
        notes.append("the diffs of changes that were not tried are for the script with those that were kept")
    direct = progress.direct
    if direct is not None and direct.failure and _is_of(direct, progress):
        notes.append(f"each fix was kept by itself, but with all of them together the script failed: {direct.failure}")
    return msgspec.structs.replace(base, findings=findings, outcome=outcome, notes=notes)


def _is_of(direct: Direct, progress: Progress) -> bool:
    """Whether nothing was kept since the ends were compared."""
    return direct.kept == sum(trial.status == "kept" for trial in progress.trials)


def _findings(now: Diagnosis, progress: Progress) -> list[FindingDocument]:
    """What was tried, in order (of one place that was tried twice the last), then what is still proposed."""
    attempts = {attempt.number: attempt for attempt in progress.attempts}
    rows: dict[str, FindingDocument] = {}
    for trial in progress.trials:
        attempt = attempts[trial.number]
        # A fix kept at a place stays in the list when another is tried there; a failure gives way to the next try.
        key = f"{attempt.place} {trial.number}" if trial.status == "kept" else attempt.place
        rows.pop(attempt.place, None)
        rows[key] = msgspec.structs.replace(
            attempt.finding,
            title=trial.title,
            status=trial.status,
            measured=trial.measured,
            fix=trial.fix,
            predicted=trial.predicted,
        )
    for offer in offers(now):
        if offer.place not in rows:
            declined = offer.place in progress.declined
            rows[offer.place] = msgspec.structs.replace(offer.document, status="skipped" if declined else "proposed")
    return [msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(rows.values(), 1)]


def _outcome(ends: Ends, progress: Progress, ended: str) -> Outcome:
    kept = [trial for trial in progress.trials if trial.status == "kept"]
    baseline, final = ends.baseline, ends.current
    direct = progress.direct
    if direct is not None and (direct.measured is None or not _is_of(direct, progress)):
        direct = None
    alone = kept[0] if len(kept) == 1 and direct is None else None
    measured = direct.measured if direct is not None else alone.measured if alone is not None else None
    runs: list[str] = []
    if measured is not None:
        of = direct if direct is not None else alone
        assert of is not None
        runs = [name for pair in zip(of.before, of.after, strict=True) for name in pair]
        step_ms = measured.before_ms, measured.after_ms
        samples = measured.before_samples_per_s, measured.after_samples_per_s
        speedup = Range(measured.low, measured.speedup, measured.high)
    else:
        step_ms = cost(baseline.record).step_s * 1e3, cost(final.record).step_s * 1e3
        samples = throughput([baseline.run]), throughput([final.run])
        speedup = product(kept)
    return Outcome(
        trials=list(progress.trials),
        baseline_ms=step_ms[0],
        final_ms=step_ms[1],
        speedup=speedup,
        direct=measured is not None,
        baseline_samples_per_s=samples[0],
        final_samples_per_s=samples[1],
        kept=[trial.rule for trial in kept],
        runs=runs,
        command=final.state.invocation(baseline.state.command),
        verdict=ends.now.document.verdict,
        ended=ended,
        seconds=progress.seconds,
    )


def product(kept: Sequence[Trial]) -> Range:
    """The speedup of several fixes: the product of theirs; half-widths of independent logarithms add up as squares."""
    measured = [trial.measured for trial in kept if trial.measured is not None]
    total = math.fsum(math.log(each.speedup) for each in measured)
    below = math.sqrt(math.fsum(math.log(each.speedup / each.low) ** 2 for each in measured))
    above = math.sqrt(math.fsum(math.log(each.high / each.speedup) ** 2 for each in measured))
    return Range(math.exp(total - below), math.exp(total), math.exp(total + above))
