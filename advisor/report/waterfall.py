"""From the script as it was, fix by fix, to the script with all that was kept: the same bars for every renderer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from advisor.findings import Outcome, Trial
from advisor.report import wording


@dataclass(frozen=True)
class Bar:
    """One version of the script. All amounts are in the waterfall's unit.

    ``start`` is what the fix was measured against (its own runs of the script before it, not the bar above: a machine
    drifts). ``low`` and ``high`` are the 95 % interval of ``amount``, ``predicted`` is where it was expected to end.
    """

    kind: Literal["baseline", "kept", "final"]
    label: str
    amount: float
    start: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: tuple[float, float] | None = None
    trial: Trial | None = None


@dataclass(frozen=True)
class Waterfall:
    """``rate``: the bars are samples per second and grow; else they are milliseconds per step and shrink."""

    rate: bool
    bars: list[Bar]
    top: float

    @property
    def unit(self) -> str:
        return "samples/s" if self.rate else "per step"

    def gained(self, bar: Bar) -> float:
        """The part of a kept fix's bar that the fix added."""
        return max(0.0, bar.amount - bar.start) if self.rate and bar.kind == "kept" and bar.start is not None else 0.0

    def saved(self, bar: Bar) -> float:
        """What a kept fix took off the time of a step: it lies beyond the bar's end."""
        if self.rate or bar.kind != "kept" or bar.start is None:
            return 0.0
        return max(0.0, bar.start - bar.amount)

    def text(self, amount: float) -> str:
        return wording.number(amount) if self.rate else wording.milliseconds(amount)


def kept_trials(outcome: Outcome) -> list[Trial]:
    return [trial for trial in outcome.trials if trial.status == "kept"]


def waterfall(outcome: Outcome) -> Waterfall:
    """The bars: baseline, each kept fix in its order, final. Only the baseline where nothing was kept."""
    kept = [trial for trial in kept_trials(outcome) if trial.measured is not None]
    rate = bool(outcome.baseline_samples_per_s and outcome.final_samples_per_s) and all(
        trial.measured and trial.measured.before_samples_per_s and trial.measured.after_samples_per_s for trial in kept
    )
    first = (outcome.baseline_samples_per_s if rate else outcome.baseline_ms) or 0.0
    bars = [Bar("baseline", "as it was", first)]
    bars += [_bar(trial, rate) for trial in kept]
    if kept:
        last = (outcome.final_samples_per_s if rate else outcome.final_ms) or 0.0
        low, high = _interval(last, outcome.speedup.low, outcome.speedup.likely, outcome.speedup.high, rate)
        bars.append(Bar("final", "all together", last, first, low, high))
    # A prediction or an interval far beyond all that was measured is cut off rather than making the bars tiny.
    ends = [end for bar in bars for end in (bar.amount, bar.start) if end]
    marks = [end for bar in bars for end in (bar.high, *(bar.predicted or ())) if end]
    top = max(ends, default=1.0)
    return Waterfall(rate, bars, max([top, *(min(mark, 1.5 * top) for mark in marks)]))


def _bar(trial: Trial, rate: bool) -> Bar:
    measured = trial.measured
    assert measured is not None
    start = (measured.before_samples_per_s if rate else measured.before_ms) or 0.0
    amount = (measured.after_samples_per_s if rate else measured.after_ms) or 0.0
    low, high = _interval(amount, measured.low, measured.speedup, measured.high, rate)
    expected = trial.predicted.speedup
    ends = (start * expected.low, start * expected.high)
    if not rate:
        ends = (start / expected.high, start / expected.low) if expected.low > 0 else (0.0, 0.0)
    predicted = ends if all(math.isfinite(end) and end > 0 for end in ends) else None
    return Bar("kept", trial.rule, amount, start, low, high, predicted, trial)


def _interval(amount: float, low: float, middle: float, high: float, rate: bool) -> tuple[float | None, float | None]:
    """A speedup's interval, laid around the amount that it led to."""
    if not all(math.isfinite(end) and end > 0 for end in (low, middle, high)):
        return None, None
    return (amount * low / middle, amount * high / middle) if rate else (amount * middle / high, amount * middle / low)
