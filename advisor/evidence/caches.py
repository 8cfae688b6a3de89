"""Caches of the user's that are too small for what is asked of them, and what computing it again takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.evidence.host import Host
from advisor.evidence.scattered import CALL_S, OPERATOR_S
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import SmallCache

_AGAIN = 0.3  # of what is computed: had been there before, and was let go
_MOST = 0.97  # of a step
_IN_LOADER = 0.5  # of the function's time


@dataclass(frozen=True)
class Thrashing:
    """A cache, how many different things it is asked for, and what computing them again takes of an undisturbed step.

    ``in_loader``: while a batch is made in the step's own process.
    """

    cache: SmallCache
    asked: int
    seconds: float
    in_loader: bool


def thrashing(evidence: Evidence) -> Thrashing | None:
    """The cache whose function takes most of the steps, by the stacks of a few; None where none is too small."""
    detail, record = evidence.detail, evidence.record
    if detail is None or record is None or not record.small_caches or not evidence.step_s:
        return None
    steps = step_windows(detail)
    stacks, host = Stacks.of(detail, steps.lane), Host(detail, steps)
    if not len(stacks) or not len(steps):
        return None
    inside = assign(steps, stacks.start) >= 0
    found = []
    for cache in record.small_caches:
        if cache.again < _AGAIN:
            continue
        site = cache.site
        called = (site.line, site.function)
        mine = [(each.line, each.name) == called and each.is_of(site.file) for each in stacks.functions]
        rows = np.flatnonzero(np.array(mine, np.bool_) & inside)
        start, end = stacks.start[rows], stacks.end[rows]
        taken = float((end - start).sum())
        in_loader = float(host.loader.within(start, end).sum())
        # In seconds, not as a share: what makes traced steps longer is hardly in a few calls of compiled code.
        within = Coverage.of(start, end)
        calls, computed = (float(within.contains(each).sum()) for each in (stacks.start, detail.operators.start))
        alone_s = taken / 1e9 - CALL_S * calls - OPERATOR_S * computed
        seconds = min(max(0.0, alone_s) / len(steps), _MOST * evidence.step_s) * cache.again
        found.append(Thrashing(cache, _asked(evidence, cache), seconds, in_loader > _IN_LOADER * taken))
    return max(found, key=lambda each: each.seconds, default=None)


def _asked(evidence: Evidence, cache: SmallCache) -> int:
    """How many different things a cache is asked for, about: of what is asked in any order, ``size`` of them are there.

    What is asked for in turn is never there: then there are as many as samples, at most.
    """
    if cache.hits:
        return max(cache.size + 1, round(cache.size * (cache.hits + cache.misses) / cache.hits))
    lengths = [each.record.dataset_length for each in evidence.loaders if each.record is not None]
    return max([2 * cache.size, *(each for each in lengths[:1] if each)])
