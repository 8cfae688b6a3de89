"""How trials and what a session came to are said; every renderer says the same."""

from __future__ import annotations

import math

from advisor.findings import FindingDocument, Findings, Numerics, Outcome, Range, Searched, Trial
from advisor.report import wording
from advisor.report.waterfall import waterfall


def headline(outcome: Outcome) -> str:
    """``400 → 1,233 samples/s: 3.08× (2.90–3.30) with loader-workers, batch-size``."""
    shape = waterfall(outcome)
    first, last = shape.bars[0].amount, shape.bars[-1].amount
    if outcome.kept:
        fixes = ", ".join(dict.fromkeys(outcome.kept))
        from_to = f"{shape.text(first)} → {shape.text(last)} {shape.unit}"
        return f"{from_to}: {ratio_of(outcome.speedup)} with {fixes}"
    still = f"{shape.text(first)} {shape.unit}, as before"
    if not outcome.trials:
        return f"no fix was tried: {still}"
    if len(outcome.trials) == 1:
        return f"the one fix that was tried was not kept: {still}"
    return f"none of the {len(outcome.trials)} fixes tried was kept: {still}"


def final(outcome: Outcome) -> str:
    """How fast the script is with what was kept."""
    shape = waterfall(outcome)
    return f"{shape.text(shape.bars[-1].amount)} {shape.unit}"


def arranged(document: Findings) -> list[FindingDocument]:
    """The findings in the order to show them in: by rank, and after trials the kept ones first."""
    if document.outcome is None:
        return document.findings
    return sorted(document.findings, key=lambda finding: finding.status != "kept")


def title(document: Findings) -> str:
    """What the list of findings is called."""
    if document.outcome is None:
        return "What to change, most promising first"
    return "What was kept, what was tried, what else could be"


def basis(outcome: Outcome) -> str:
    """Where the headline's speedup comes from."""
    if not outcome.kept:
        return ""
    if outcome.direct:
        return (
            f"Measured directly: the script as it was and with all that was kept, in turn, {len(outcome.runs)} runs; "
            "in brackets the 95% interval."
        )
    if len(outcome.kept) == 1:
        return "Measured in pairs of runs; in brackets the 95% interval."
    return "The product of the fixes' own speedups, each measured in pairs of runs; in brackets the 95% interval."


def ended(outcome: Outcome) -> str:
    """Why the session ended and how long it took; empty when neither is known."""
    spent = clock(outcome.seconds) if outcome.seconds else ""
    told = "; ".join(text for text in (outcome.ended.rstrip("."), f"{spent} in all" if spent else "") if text)
    return f"Ended: {told}." if told else ""


def now(outcome: Outcome) -> str:
    """What holds the script back with the kept fixes; empty when nothing was kept."""
    return outcome.verdict if outcome.kept else ""


def ratio(speedup: float, low: float, high: float) -> str:
    """``2.10× (2.05–2.16)``; without brackets where no interval is known."""
    decimals = 2 if abs(speedup) < 10 else 1
    text = f"{speedup:.{decimals}f}×" if math.isfinite(speedup) else "unknown"
    if not (math.isfinite(low) and math.isfinite(high)):
        return text
    return f"{text} ({low:.{decimals}f}–{high:.{decimals}f})"


def ratio_of(range_: Range) -> str:
    return ratio(range_.likely, range_.low, range_.high)


def measured(trial: Trial) -> str:
    """A trial's measured speedup, or a dash."""
    return ratio(trial.measured.speedup, trial.measured.low, trial.measured.high) if trial.measured else "–"


def predicted(trial: Trial) -> str:
    return wording.speedup(trial.predicted.speedup)


def change(trial: Trial) -> str:
    """Throughput, or the step time where that is not known, before and after; empty when nothing was measured."""
    figures = trial.measured
    if figures is None:
        return ""
    if figures.before_samples_per_s and figures.after_samples_per_s:
        rates = (wording.number(figures.before_samples_per_s), wording.number(figures.after_samples_per_s))
        return f"{rates[0]} → {rates[1]} samples/s"
    return f"{wording.milliseconds(figures.before_ms)} → {wording.milliseconds(figures.after_ms)} per step"


def figures(trial: Trial) -> str:
    """The numbers behind a trial's verdict, in one line."""
    clauses = [change(trial)] if trial.measured else []
    if trial.measured:
        pairs = f" in {trial.measured.pairs} {'pair' if trial.measured.pairs == 1 else 'pairs'} of runs"
        clauses.append(f"measured {measured(trial)}{pairs if trial.measured.pairs else ''}")
    clauses.append(f"predicted {predicted(trial)}")
    least = trial.measured.smallest_gain if trial.measured else None
    if trial.status == "inconclusive" and least and math.isfinite(least):
        clauses.append(f"the smallest gain that could have been seen was {wording.percent(least - 1)}")
    return ", ".join(clauses)


def details(trial: Trial) -> list[str]:
    """The reason of a trial's verdict and what is behind it, in sentences: numbers, drift, sizes that were tried."""
    sentences = [reason(trial), sentence(figures(trial)), sentence(numerics(trial))]
    sentences += [f"{size.text}: {searched(size)}, run {size.folder}." for size in trial.searched]
    if trial.verdict_after:
        sentences.append(f"After it: {trial.verdict_after}")
    return [text for text in sentences if text]


def reason(trial: Trial) -> str:
    """Why it was kept or not; an error's text stays as it is."""
    return trial.reason if trial.status == "failed" else sentence(trial.reason)


def sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}." if clause else ""


def runs(trial: Trial) -> str:
    """The folders that a trial's numbers come from; those inside its own folder under their short names."""
    if not trial.before and not trial.after:
        return f"Run: {trial.folder}"
    names = [[name.removeprefix(f"{trial.folder}/") for name in each] for each in (trial.before, trial.after)]
    return f"Runs in {trial.folder}: before {', '.join(names[0])}; with the fix {', '.join(names[1])}"


def searched(size: Searched) -> str:
    """One size of a search: what it brought, or its error."""
    if size.error:
        return size.error.rstrip(".")
    texts = []
    if size.samples_per_s:
        texts.append(f"{wording.number(size.samples_per_s)} samples/s")
    elif size.step_ms:
        texts.append(f"{wording.milliseconds(size.step_ms)} per step")
    if size.memory_share is not None:
        texts.append(f"{wording.percent(size.memory_share)} of the memory")
    return ", ".join(texts) or "not measured"


# What the script computes.


def numerics(trial: Trial) -> str:
    """How far losses or outputs moved, and how far they may; empty when neither is known."""
    compared = trial.numerics
    if compared is None or compared.drift is None:
        return ""
    noun = "losses" if compared.kind == "loss" else "outputs"
    limits = []
    if compared.tolerance is not None:
        limits.append(f"allowed {_share(compared.tolerance)}")
    if compared.repeats is not None:
        limits.append(f"unchanged runs {_share(compared.repeats)}")
    count = min(len(compared.before), len(compared.after))
    text = f"the first {count} {noun} differ by {_share(compared.drift)}"
    return f"{text} ({', '.join(limits)})" if limits else text


def side_by_side(trial: Trial) -> Numerics | None:
    """The values to show beside each other: of fixes that change the training, and where a check did not pass."""
    compared = trial.numerics
    if compared is None or not (compared.before and compared.after):
        return None
    broken = None in compared.after or compared.drift is None
    beyond = compared.tolerance is not None and compared.drift is not None and compared.drift > compared.tolerance
    return compared if trial.safety == "behaviour" or broken or beyond else None


def excerpt(compared: Numerics, most: int) -> list[tuple[str, str, str] | None]:
    """(number, before, after) of the first and last values, `most` at most; None stands for those left out."""
    count = min(len(compared.before), len(compared.after))
    rows: list[tuple[str, str, str] | None] = [
        (str(index + 1), amount(compared.before[index]), amount(compared.after[index])) for index in range(count)
    ]
    if count <= most:
        return rows
    head = max(1, (most + 1) // 2)
    tail = max(0, most - head)
    return [*rows[:head], None, *rows[count - tail :]]


def amount(loss: float | None) -> str:
    return "NaN" if loss is None or not math.isfinite(loss) else f"{loss:.4g}"


def _share(drift: float) -> str:
    if not math.isfinite(drift):
        return "more than can be said"
    if 0 < drift < 1e-6:
        return "less than 0.0001%"
    return f"{100 * drift:.2g}%" if drift < 1 else f"{100 * drift:.0f}%"


# Times.


def clock(seconds: float) -> str:
    """``3:40`` (minutes and seconds), ``1:02:05`` from an hour on."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def used(seconds: float, budget: float | None) -> str:
    """``3:40 of 20:00 used``, or ``3:40 used`` where nothing bounds the session."""
    return f"{clock(seconds)} of {clock(budget)} used" if budget else f"{clock(seconds)} used"
