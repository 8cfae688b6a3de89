"""Is B faster than A, by how much, and how sure are we: statistics over runs, nothing else.

The unit is the run: steps within one are not independent (a bootstrap over steps called a script different from itself
7 times in 10). Costs – seconds per step or per sample – are compared as logarithms of ratios, by Student's t. Pairs
were run in alternation, so that what drifts meets both; groups are runs of two sessions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from advisor.errors import AdvisorError
from advisor.harness.layout import RunRecord

Verdict = Literal["kept", "reverted", "inconclusive"]

LEAST_PAIRS = 3
EPOCH_START = "epoch start"  # as the harness names what it sets aside
CHECKPOINT, COMPILATION = "checkpoint", "compilation"
# So many in a run are no chance; whose share of the intervals is so many times the other side's has another habit.
LEAST_PAUSES, MUCH_MORE_OFTEN = 3, 1.5
CONFIDENCE = 0.95
# Pairs are looked at again and again, after the third, fourth … eighth, and each look is a chance to see what is not
# there: with 95 % at each, a script was told apart from itself in up to 9 % of simulated sessions, with this in less
# than 5 %, whether runs differ normally, with heavy tails or drift (tests/benchmarks/results/compare_simulated.md).
LOOK_CONFIDENCE = 0.975
# Standard deviations of the logarithm of one run's cost. Three runs are sometimes alike by chance, and then a
# difference of nothing looks certain: less than the first is never believed. It still lets three pairs tell 2 %.
SPREAD_FLOOR = 0.0035
# Where there are too few runs to tell it, the spread is assumed: blocks of 20 steps on a shared two-core machine
# differed by 5 to 13 % (tests/benchmarks/results/timing_window.md, quartiles of ratios); a run is longer than a block.
SPREAD_ASSUMED = 0.05


@dataclass(frozen=True)
class Cost:
    """What a step costs in one run; ``samples`` per step where they are known."""

    step_s: float
    samples: float | None = None

    @property
    def per_sample_s(self) -> float:
        return self.step_s / (self.samples or 1.0)


@dataclass(frozen=True)
class Comparison:
    """How much faster B is than A: ``speedup`` is A's cost over B's, ``low`` to ``high`` its 95 % interval.

    ``runs`` counts them on either side. ``spread`` is the standard deviation of the logarithm of one run's cost, 0.01
    for about 1 %; ``assumed`` says that there were too few runs to tell it, and that it is a guess on the safe side.
    """

    speedup: float
    low: float
    high: float
    runs: tuple[int, int]
    paired: bool
    spread: float
    assumed: bool = False

    @property
    def pairs(self) -> int:
        return min(self.runs)

    @property
    def half(self) -> float:
        """Half the width of the interval, as a logarithm."""
        return math.log(self.high / self.low) / 2

    @property
    def different(self) -> bool:
        """Whether the two can be told apart at all."""
        return self.low > 1 or self.high < 1

    def smallest_gain(self, min_gain: float = 0.0) -> float:
        """The smallest speedup (1.03 = 3 %) that these runs could have told from one of `min_gain`."""
        return (1 + min_gain) * math.exp(self.half)


# Costs ---------------------------------------------------------------------------------------------------------------


class BetweenSteps(NamedTuple):
    """Which of the things that happen between steps a comparison counts, as the harness names them."""

    causes: tuple[str, ...] = ()

    @classmethod
    def of(cls, before: Sequence[RunRecord], after: Sequence[RunRecord]) -> BetweenSteps:
        """What a comparison of these runs counts."""
        found = [EPOCH_START] if epoch_starts_count([*before, *after]) else []
        # A script that is compiled for the first time is so once; one that makes Dynamo forget is, again and again.
        habits = [CHECKPOINT, COMPILATION] if any(map(_forgets_compiled, (*before, *after))) else [CHECKPOINT]
        return cls((*found, *(each for each in habits if pauses_count(each, before, after))))


STEPS_ALONE = BetweenSteps()


def cost(record: RunRecord, between: BetweenSteps = STEPS_ALONE) -> Cost:
    """What a step of this run costs, with its share of what counts of what is `between` steps.

    Raises AdvisorError when the run has no step time that could be compared.
    """
    step_s, samples = record.timing.step_s, record.timing.samples_per_step
    if step_s is None:
        raise AdvisorError(f"a run of {record.script or 'the script'} has no step time: profile the script again.")
    if not _positive(step_s):
        raise AdvisorError(
            f"a run of {record.script or 'the script'} says that a step takes {step_s} s, which cannot be: profile the "
            "script again."
        )
    timing = record.timing
    for cause in between.causes:
        step_s += timing.aside.get(cause, 0.0) / max(timing.steps + timing.aside_counts.get(cause, 0), 1)
    return Cost(step_s, samples if samples is not None and _positive(samples) else None)


def epoch_starts_count(records: Sequence[RunRecord]) -> bool:
    """Whether a comparison of these runs counts what epochs' starts cost: new workers, the wait for a first batch.

    They are part of training; but whether one of a long epoch falls into the timing window is chance, and over its many
    steps it is little. So they count where every run saw one, and some run several.
    """
    counts = [record.timing.aside_counts.get(EPOCH_START, 0) for record in records]
    return min(counts, default=0) >= 1 and max(counts) >= 2


def pauses_count(cause: str, before: Sequence[RunRecord], after: Sequence[RunRecord]) -> bool:
    """Whether a comparison of these runs counts what pauses of a `cause` cost: where one side makes many more of them.

    Else they cost both sides the same, and a disk's moods, say, would only hide what differs.
    """
    counts = [[record.timing.aside_counts.get(cause, 0) for record in side] for side in (before, after)]
    if max((max(each, default=0) for each in counts), default=0) < LEAST_PAUSES:
        return False
    rates = [
        statistics.median(count / max(record.timing.steps + count, 1) for record, count in zip(side, each, strict=True))
        for side, each in zip((before, after), counts, strict=True)
        if side
    ]
    return len(rates) == 2 and max(rates) > MUCH_MORE_OFTEN * min(rates)


def _forgets_compiled(record: RunRecord) -> bool:
    return any(each.kind == "dynamo.reset" for each in record.call_sites)


def costs(before: RunRecord, after: RunRecord) -> tuple[float, float]:
    """Comparable costs of two runs: seconds per sample when both know how many a step has and these differ, else
    seconds per step. Raises as :func:`cost` does."""
    (one,), (other,) = group_costs([before], [after])
    return one, other


def group_costs(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> tuple[list[float], list[float]]:
    """As :func:`costs`, for several runs on either side: all in the same unit."""
    between = BetweenSteps.of(before, after)
    first, second = [cost(record, between) for record in before], [cost(record, between) for record in after]
    if per_sample(first, second):
        return [each.per_sample_s for each in first], [each.per_sample_s for each in second]
    return [each.step_s for each in first], [each.step_s for each in second]


def per_sample(before: Sequence[Cost], after: Sequence[Cost]) -> bool:
    """Whether the steps must be compared by their samples: all are known, and not all are the same.

    A hundredth apart is the same: batches whose sizes vary.
    """
    samples = [each.samples for each in (*before, *after)]
    known = [each for each in samples if each is not None]
    return len(known) == len(samples) and max(known) > 1.01 * min(known)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


# Comparing -----------------------------------------------------------------------------------------------------------


def compare_pairs(pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Compare runs made in alternation: (A's cost, B's) of each pair, in the order they were made.

    With fewer than three pairs the spread is assumed (:data:`SPREAD_ASSUMED`), or theirs, if they differ more.
    Raises AdvisorError when there is no pair, or a cost that is none.
    """
    _check([value for pair in pairs for value in pair])
    logs = [math.log(before) - math.log(after) for before, after in pairs]
    count = len(logs)
    own = statistics.stdev(logs) / math.sqrt(2) if count > 1 else 0.0
    assumed = count < LEAST_PAIRS
    spread = max(own, SPREAD_ASSUMED if assumed else SPREAD_FLOOR)
    quantile = _normal_quantile(LOOK_CONFIDENCE) if assumed else t_quantile(LOOK_CONFIDENCE, count - 1)
    half = quantile * spread * math.sqrt(2 / count)
    return _comparison(math.fsum(logs) / count, half, (count, count), True, spread, assumed)


def compare_groups(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare the costs of runs that were not made in alternation, of two sessions: A's with B's.

    One spread is taken for both sides, so that one side may be a single run; with two runs or one in all it is assumed.
    What changed on the machine from one session to the next is no part of the interval: no statistics can tell it from
    a change of the script. Raises AdvisorError when a side is empty, or a cost is none.
    """
    _check(before)
    _check(after)
    sides = [[math.log(value) for value in side] for side in (before, after)]
    means = [math.fsum(side) / len(side) for side in sides]
    freedom = len(before) + len(after) - 2
    squares = math.fsum((value - mean) ** 2 for side, mean in zip(sides, means, strict=True) for value in side)
    own = math.sqrt(squares / freedom) if freedom else 0.0
    assumed = freedom < LEAST_PAIRS - 1
    spread = max(own, SPREAD_ASSUMED if assumed else SPREAD_FLOOR)
    # The number of runs was settled beforehand: one look.
    quantile = _normal_quantile(CONFIDENCE) if assumed else t_quantile(CONFIDENCE, freedom)
    half = quantile * spread * math.sqrt(1 / len(before) + 1 / len(after))
    return _comparison(means[0] - means[1], half, (len(before), len(after)), False, spread, assumed)


def _comparison(
    mean: float, half: float, runs: tuple[int, int], paired: bool, spread: float, assumed: bool
) -> Comparison:
    return Comparison(math.exp(mean), math.exp(mean - half), math.exp(mean + half), runs, paired, spread, assumed)


def _check(values: Sequence[float]) -> None:
    if not values:
        raise AdvisorError("there is no run to compare: profile the script first.")
    for value in values:
        if not _positive(value):
            raise AdvisorError(f"a cost of {value} s cannot be compared: profile the script again.")


# Judging -------------------------------------------------------------------------------------------------------------


def verdict(comparison: Comparison, min_gain: float) -> Verdict:
    """What becomes of a fix that must bring `min_gain` (0.02 = 2 %).

    ``kept``: surely more than that; ``reverted``: surely less, or slower; ``inconclusive``: the runs cannot tell, or
    there are fewer than three pairs of them.
    """
    if comparison.pairs < LEAST_PAIRS:
        return "inconclusive"
    if comparison.low > 1 + min_gain:
        return "kept"
    return "reverted" if comparison.high < 1 + min_gain else "inconclusive"


def enough(comparison: Comparison, min_gain: float) -> bool:
    """Whether more pairs are not worth their time: never by the sign of the difference, only by the interval's width.

    At least three pairs, and half the interval no wider than `min_gain`, or than half of the difference, whichever way
    it goes: a gain of 2× need not be known to 2 %.
    """
    if comparison.pairs < LEAST_PAIRS:
        return False
    return comparison.half <= max(math.log1p(min_gain), abs(math.log(comparison.speedup)) / 2)


# Student's t ---------------------------------------------------------------------------------------------------------


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t with which Student's distribution of `freedom` degrees lies within ±t with probability `confidence`."""
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < confidence:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """P(-t < T < t): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cosine if odd else 1.0
    for k in range(2 + odd, freedom - 1 + odd, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _normal_quantile(confidence: float) -> float:
    return statistics.NormalDist().inv_cdf((1 + confidence) / 2)
