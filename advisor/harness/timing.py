"""From the intervals between step boundaries to the timing record; what the process used meanwhile."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable
from typing import NamedTuple

from .layout import Loader, Timing


class Interval(NamedTuple):
    """From one step boundary to the next."""

    seconds: float
    causes: frozenset[str]  # what happened in it besides the step: evaluation, checkpoint, compilation, epoch start
    wait: float  # seconds blocked in loaders
    samples: int
    collecting: tuple[float, float] = (0.0, 0.0)  # seconds in the garbage collector, and of them asked for
    openblas: float = 0.0  # CPU seconds of the threads that NumPy's OpenBLAS started
    faults: tuple[int, float] = (0, 0.0)  # page faults, and system seconds of the steps' thread


def usual_causes(intervals: list[Interval]) -> set[str]:
    """Causes that come with more than half of the steps: they are part of the step, not beside it."""
    counts: dict[str, int] = {}
    for interval in intervals:
        for cause in interval.causes:
            counts[cause] = counts.get(cause, 0) + 1
    return {cause for cause, count in counts.items() if count * 2 > len(intervals)}


def summarize(timing: Timing, intervals: list[Interval], loaders: list[Loader]) -> None:
    """Fill the timing record from the intervals: clean ones make the step, the others are set aside by cause.

    An epoch's start (new workers, the wait for a first batch) is part of training: it is spread over the epoch's
    steps, as ``aside["epoch start"]`` says, and only the rest of an interval beyond a clean step counts as aside.
    """
    usual = usual_causes(intervals)
    clean = [row for row in intervals if not row.causes - usual]
    if not clean:
        clean = intervals
    timing.steps = len(clean)
    timing.intervals = [row.seconds for row in clean]
    timing.loader_wait_s = [row.wait for row in clean]
    timing.elapsed = sum(timing.intervals)
    timing.step_s = timing.elapsed / len(clean)
    timing.median_s = statistics.median(timing.intervals)
    timing.gc_s, timing.gc_asked_s = (statistics.fmean(row.collecting[i] for row in clean) for i in (0, 1))
    timing.openblas_s = statistics.fmean(row.openblas for row in clean)
    timing.page_faults, timing.system_s = (statistics.fmean(row.faults[i] for row in clean) for i in (0, 1))
    timing.gc_asked_steps = sum(row.collecting[1] > 0 for row in clean)
    timing.samples_per_step = _samples([row.samples for row in clean], any(loader.trains for loader in loaders))
    for interval in intervals:
        unusual = sorted(interval.causes - usual)
        if unusual and clean is not intervals:
            cause = weightiest(unusual)
            timing.aside[cause] = timing.aside.get(cause, 0.0) + max(interval.seconds - timing.step_s, 0.0)
            timing.aside_counts[cause] = timing.aside_counts.get(cause, 0) + 1
            timing.aside_gc_s[cause] = timing.aside_gc_s.get(cause, 0.0) + interval.collecting[0]
    if "evaluation" not in usual:
        timing.evaluation_every = _every(intervals, "evaluation")
    if "checkpoint" not in usual:
        timing.checkpoint_every = _every(intervals, "checkpoint")
    if "compilation" not in usual:
        timing.compilation_every = _every(intervals, "compilation")
    waits = statistics.fmean(timing.loader_wait_s)
    for loader in loaders:
        if loader.trains:
            loader.wait_s = waits
            waits = 0.0  # several loaders in one step: the wait is known for all together, and shown once


def _every(intervals: list[Interval], cause: str) -> float | None:
    """Steps from one interval in which that happened to the next; None before a second was seen."""
    places = [place for place, row in enumerate(intervals) if cause in row.causes]
    return (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else None


def _samples(samples: list[int], from_loader: bool) -> float | None:
    """Samples per step: what most steps have, else the mean of a loader's batches of many sizes.

    A script that ends, or fetches ahead, leaves one interval with other samples than the rest. The rows of a model that
    is called for one thing and then another (a query, then forty passages) are no samples of anything.
    """
    middle = statistics.median(samples)
    if middle and sum(each == middle for each in samples) * 3 >= len(samples) * 2:
        return float(middle)
    return statistics.fmean(samples) or None if from_loader else None


LONG = 3.0  # times the median: a step that long did something that the others do not
MOST_PERIOD = 400  # 2048 states, played ten times over in minibatches of 64, are 320 updates: PPO's own numbers
CARRIES_WEIGHT = 0.1  # of the time


def period(intervals: list[float]) -> int:
    """Every how many steps a long one comes that carries weight; 1 when none does, or not regularly.

    Sixteen updates, then a rollout of two hundred times an update's length, as in PPO: a profile of three steps would
    miss where most of the time goes.
    """
    if len(intervals) < 2 * GROUP:
        return 1
    usual = statistics.median(intervals)
    # Two of the longest may be accidents. What comes near the rest of them is of their kind, and no hiccup.
    longest = sorted(intervals)[-3]
    if longest < LONG * usual:
        return 1
    places = [place for place, seconds in enumerate(intervals) if seconds >= max(LONG * usual, longest / 2)]
    excess = sum(intervals[place] - usual for place in places)
    gaps = [after - before for before, after in itertools.pairwise(places)]
    every = statistics.mode(gaps)
    regular = gaps.count(every) * 2 >= len(gaps) and every <= MOST_PERIOD
    return every if regular and excess >= CARRIES_WEIGHT * sum(intervals) else 1


# Seconds: a longer period is not measured whole. One of many steps has to be shorter, for its trace grows with what is
# called, and not with the time.
LONGEST_PERIOD, LONGEST_OF_MANY, MANY = 3.0, 1.5, 64


def whole_period(intervals: list[float]) -> int:
    """Of how many steps the windows take a multiple: the period, where it came twice and is no long one; else 1."""
    every = period(intervals)
    longest = LONGEST_PERIOD if every <= MANY else LONGEST_OF_MANY
    short = every * sum(intervals) <= longest * len(intervals)
    return every if short and every <= len(intervals) // 2 else 1


ENOUGH_PAUSES = 3  # of a kind: two do not say how regularly they come
_HEAVY_PAUSES = 0.2  # of the time
_LEAST_PAUSES = {"compilation": 2}  # one is that of a last batch with fewer samples, say, and over


def pauses_to_come(intervals: list[Interval]) -> bool:
    """Whether something that is set aside takes much of the time, and has not been seen often enough to say how much.

    An evaluation every 200 steps is in a window of a few hundred once, or twice.
    """
    usual, whole = usual_causes(intervals), sum(row.seconds for row in intervals)
    for cause in {*_WEIGHT} - usual:
        seconds = [row.seconds for row in intervals if cause in row.causes]
        if _LEAST_PAUSES.get(cause, 1) <= len(seconds) < ENOUGH_PAUSES and sum(seconds) >= _HEAVY_PAUSES * whole:
            return True
    return False


# When several things fell between two boundaries, the weightiest gives its name.
_WEIGHT = ("compilation", "evaluation", "checkpoint", "epoch start")


def weightiest(causes: Iterable[str]) -> str:
    """Of what happened in a step besides the one that gives it its name; "" for nothing."""
    found = set(causes)
    return next((each for each in _WEIGHT if each in found), "")


def compiled_frames() -> int:
    """How many frames Dynamo has compiled so far; 0 while it was never imported."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0


GROUP = 5  # steps per group while settling
SETTLED = 0.05  # two successive groups this close have settled


def has_settled(intervals: list[Interval]) -> bool:
    """Whether two successive groups of steps took the same time, and nothing was compiled in them.

    Asked after each interval; the answer can be yes after whole groups only.
    """
    clean = [row.seconds for row in intervals if not row.causes - {"epoch start", "evaluation"}]
    if not intervals or len(intervals) % GROUP or len(clean) < 2 * GROUP:
        return False
    if any("compilation" in row.causes for row in intervals[-2 * GROUP :]):
        return False
    before, after = sum(clean[-2 * GROUP : -GROUP]), sum(clean[-GROUP:])
    return abs(after - before) <= SETTLED * max(before, after)
