"""A trial: two versions of the script, run in alternation until their difference is known, and judged.

The unit is the run (see :mod:`advisor.compare`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor import compare
from advisor.compare import LEAST_PAIRS, BetweenSteps, Comparison
from advisor.findings import Measured, Numerics
from advisor.findings import Status as Verdict
from advisor.improve.bench import Bench, BudgetError, TrialError, Version
from advisor.improve.numerics import compare_numerics, not_finite
from advisor.rule import Safety
from advisor.run import Run

# More pairs than this tell little more: the interval shrinks with their square root.
MOST_PAIRS = 6


@dataclass(frozen=True)
class Result:
    """What a comparison of two versions came to; ``before`` and ``after`` are its runs, pair by pair.

    ``kind`` is that of the failure, where the version that was tried failed.
    """

    status: Verdict
    reason: str
    measured: Measured | None = None
    numerics: Numerics | None = None
    before: tuple[Path, ...] = ()
    after: tuple[Path, ...] = ()
    kind: str = ""


@dataclass
class _Pairs:
    """Runs of two versions so far. One without its partner waits at the end of its list."""

    safety: Safety
    min_gain: float
    before: list[Run]
    after: list[Run]

    @property
    def count(self) -> int:
        return min(len(self.before), len(self.after))

    def comparison(self) -> Comparison:
        count = self.count
        before, after = compare.group_costs(
            [run.record for run in self.before[:count]], [run.record for run in self.after[:count]]
        )
        return compare.compare_pairs(list(zip(before, after, strict=True)))

    def enough(self) -> bool:
        if self.count < LEAST_PAIRS:
            return False
        return self.count >= MOST_PAIRS or compare.enough(self.comparison(), self.min_gain)

    def broken(self) -> str:
        return not_finite([run.record for run in self.before], [run.record for run in self.after])

    def result(self, status: Verdict, reason: str, kind: str = "") -> Result:
        count = self.count
        if not count:
            return Result(status, reason, kind=kind)
        before, after = self.before[:count], self.after[:count]
        numerics, _ = compare_numerics(self.safety, [run.record for run in before], [run.record for run in after])
        comparison = self.comparison()
        between = compare.BetweenSteps.of([run.record for run in before], [run.record for run in after])
        measured = Measured(
            before_ms=_mean_step(before, between) * 1e3,
            after_ms=_mean_step(after, between) * 1e3,
            speedup=comparison.speedup,
            low=comparison.low,
            high=comparison.high,
            loss_drift=numerics.drift if numerics else None,
            pairs=count,
            smallest_gain=comparison.smallest_gain(self.min_gain),
            before_samples_per_s=throughput(before, between),
            after_samples_per_s=throughput(after, between),
        )
        folders = tuple(run.folder for run in before), tuple(run.folder for run in after)
        return Result(status, reason, measured, numerics, *folders, kind)


def compare_versions(
    bench: Bench,
    before: Version,
    after: Version,
    folder: Path,
    *,
    safety: Safety,
    min_gain: float,
    first: tuple[Run, Run] | None = None,
) -> Result:
    """Run `before` and `after` in alternation until their difference is known well enough, or time is up.

    Repeats go into `folder`. ``first`` is a pair of runs that exist already and were made one after the other.
    """
    pairs = _Pairs(safety, min_gain, *([each] for each in first)) if first else _Pairs(safety, min_gain, [], [])
    try:
        while not pairs.enough() and not pairs.broken():
            number = pairs.count + 1
            bench.say(f"pair {number} of at least {LEAST_PAIRS}")
            # The other way round in every second pair: what drifts favours neither. With a steady drift of 1.5 % from
            # run to run, simulated sessions of a script against itself told it from itself in 7 % of cases with
            # A B A B, in 3 % with A B B A.
            for side in ("before", "after") if number % 2 else ("after", "before"):
                where = folder / f"{number}-{side}"
                if side == "after":
                    pairs.after.append(bench.again(after, where, like=before))
                else:
                    failed = _repeat(bench, before, where, pairs)
                    if failed is not None:
                        return failed
    except BudgetError:
        return _judge(pairs, "the time was used up")
    except TrialError as error:
        return pairs.result("failed", str(error), error.kind)
    return _judge(pairs, "")


def _repeat(bench: Bench, version: Version, where: Path, pairs: _Pairs) -> Result | None:
    """One more run of the script without the fix; a result when that fails, which is not the fix's fault."""
    try:
        pairs.before.append(bench.again(version, where))
    except TrialError as error:
        return pairs.result("inconclusive", f"the script without the fix failed when it was run again: {error}")
    return None


def _judge(pairs: _Pairs, shortage: str) -> Result:
    if not pairs.count:
        return Result("inconclusive", f"{shortage} before anything was measured")
    count = pairs.count
    records = [[run.record for run in runs[:count]] for runs in (pairs.before, pairs.after)]
    broken = pairs.broken()
    if broken:
        return pairs.result("failed", broken, "nan")
    if count < LEAST_PAIRS:
        reason = f"{shortage} after {count} of at least {LEAST_PAIRS} pairs of runs"
        return pairs.result("inconclusive", reason)
    _, wrong = compare_numerics(pairs.safety, *records)
    if wrong:
        return pairs.result("failed", wrong, "numerics")
    comparison = pairs.comparison()
    status = compare.verdict(comparison, pairs.min_gain)
    reason = _reason(status, comparison, pairs.min_gain)
    unseen = status == "kept" and not any(record.losses or record.outputs for record in records[1])
    return pairs.result(status, f"{reason}; what it computes was not seen, so not compared" if unseen else reason)


def _reason(status: str, comparison: Comparison, min_gain: float) -> str:
    wanted = f"{min_gain * 100:.3g} %"
    if status == "kept":
        return f"measured faster, surely by more than {wanted}"
    if status == "reverted":
        return "measured slower" if comparison.high < 1 else f"no gain, surely none of {wanted}"
    least = comparison.smallest_gain(min_gain)
    return (
        f"the runs differ too much among themselves: they could have told a gain of {least - 1:.0%} or more from one "
        f"of {wanted}"
    )


def _mean_step(runs: Sequence[Run], between: BetweenSteps) -> float:
    return math.fsum(compare.cost(run.record, between).step_s for run in runs) / len(runs)


def throughput(runs: Sequence[Run], between: BetweenSteps = compare.STEPS_ALONE) -> float | None:
    """Samples per second over runs of one version, with what counts of what is `between` steps.

    None where a run does not know its samples.
    """
    found = [compare.cost(run.record, between) for run in runs]
    samples = [each.samples for each in found if each.samples]
    if len(samples) < len(found):
        return None
    return math.fsum(samples) / math.fsum(each.step_s for each in found)
