"""Interval algebra on int64 columns: O(n log n), no Python per interval.

Intervals are half-open [start, end) and given as two arrays of one length, in any order, overlapping or not,
unless a function asks for *merged* ones: sorted, disjoint and not touching, as :func:`union` returns them.
Empty intervals (end ≤ start) cover nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints: TypeAlias = NDArray[np.int64]
Merged: TypeAlias = tuple[Ints, Ints]

EMPTY: Merged = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _pair(start: ArrayLike, end: ArrayLike) -> Merged:
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    filled = ends > starts
    return (starts, ends) if filled.all() else (starts[filled], ends[filled])


def union(start: ArrayLike, end: ArrayLike) -> Merged:
    """What at least one interval covers, merged: (starts, ends) sorted; touching intervals become one."""
    starts, ends = _pair(start, end)
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def total(start: ArrayLike, end: ArrayLike) -> int:
    """How much at least one interval covers."""
    starts, ends = union(start, end)
    return int((ends - starts).sum())


def _covered(merged: Merged) -> Ints:
    """``covered[i]``: what the first i merged intervals cover together."""
    starts, ends = merged
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(ends - starts)))


def covered_before(at: ArrayLike, merged: Merged) -> Ints:
    """Per point of `at`: how much of `merged` lies before it."""
    starts, ends = merged
    points = np.asarray(at, np.int64)
    if not len(starts):
        return np.zeros(points.shape, np.int64)
    index = np.searchsorted(starts, points, side="right")
    # Of the last interval that began, what lies beyond the point does not count.
    beyond = np.maximum(ends[np.maximum(index - 1, 0)] - points, 0)
    return np.asarray(_covered(merged)[index] - np.where(index > 0, beyond, 0), np.int64)


def overlap_per_row(start: ArrayLike, end: ArrayLike, merged: Merged) -> Ints:
    """Per interval: how much of it `merged` covers."""
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    ends = np.maximum(starts, ends)
    return covered_before(ends, merged) - covered_before(starts, merged)


def contains(at: ArrayLike, merged: Merged) -> NDArray[np.bool_]:
    """Per point: whether an interval of `merged` covers it."""
    starts, ends = merged
    points = np.asarray(at, np.int64)
    if not len(starts):
        return np.zeros(points.shape, np.bool_)
    index = np.searchsorted(starts, points, side="right") - 1
    return (index >= 0) & (points < ends[np.maximum(index, 0)])


def intersect(a: Merged, b: Merged) -> Merged:
    """What both of two merged sets cover, merged."""
    if not len(a[0]) or not len(b[0]):
        return EMPTY
    # Every piece of the intersection begins at a start of one set that the other covers, and ends likewise.
    starts = np.concatenate((a[0][contains(a[0], b)], b[0][contains(b[0], a)]))
    ends = np.concatenate((a[1][contains(a[1] - 1, b)], b[1][contains(b[1] - 1, a)]))
    return _ordered(starts), _ordered(ends)


def _ordered(values: Ints) -> Ints:
    """Distinct values in order. Of two sorted runs, as here, timsort makes one in linear time."""
    values = np.sort(values, kind="stable")
    kept: Ints = values[np.concatenate((np.ones(len(values[:1]), bool), values[1:] != values[:-1]))]
    return kept


def gaps(merged: Merged, start: int, end: int) -> Merged:
    """What `merged` leaves uncovered of [start, end), merged."""
    starts, ends = clip(*merged, start, end)
    if end <= start:
        return EMPTY
    holes = np.concatenate(([start], ends)), np.concatenate((starts, [end]))
    return _pair(*holes)


def subtract(a: Merged, b: Merged) -> Merged:
    """What `a` covers and `b` does not, both merged; merged."""
    if not len(a[0]):
        return EMPTY
    return intersect(a, gaps(b, int(a[0][0]), int(a[1][-1])))


def clip(start: ArrayLike, end: ArrayLike, low: int, high: int) -> Merged:
    """The intervals cut to [low, high); those with nothing inside are left out. Order and overlaps stay."""
    starts = np.clip(np.asarray(start, np.int64), low, high)
    ends = np.clip(np.asarray(end, np.int64), low, high)
    return _pair(starts, ends)


def depth(start: ArrayLike, end: ArrayLike) -> tuple[Ints, Ints]:
    """How many intervals cover each moment: (at, count), the count holding from its moment to the next one."""
    starts, ends = _pair(start, end)
    moments = np.concatenate((starts, ends))
    steps = np.concatenate((np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)))
    at, inverse = np.unique(moments, return_inverse=True)
    change = np.zeros(len(at), np.int64)
    np.add.at(change, inverse, steps)
    return at, np.cumsum(change)


def innermost(
    start: ArrayLike, end: ArrayLike, at: ArrayLike, outer: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Per point of `at`: the row of the shortest-reaching interval that covers it; -1 where none does.

    For properly nested intervals (a thread's operators), sorted by start with the longer one first. Rows that
    begin together keep that order, so that the last one is the inner one. `outer`: what :func:`parents` gives for
    them, where that is known.
    """
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    points = np.asarray(at, np.int64)
    if not len(starts):
        return np.full(points.shape, -1, np.intp)
    row: NDArray[np.intp] = np.searchsorted(starts, points, side="right").astype(np.intp) - 1
    outer = parents(starts, ends) if outer is None else outer
    # Climb from the last interval that began to the first of its ancestors that has not ended: one round per level.
    while True:
        over = (row >= 0) & (points >= ends[row])
        if not over.any():
            return row
        row = np.where(over, outer[row], row)


def parents(start: ArrayLike, end: ArrayLike) -> NDArray[np.intp]:
    """Per interval the row of the innermost one that encloses it; -1 where none does.

    For properly nested intervals sorted by start, the longer one first where two begin together. Intervals
    that merely overlap count as if the earlier one enclosed those that begin before it ends.
    """
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    parent: NDArray[np.intp] = np.arange(-1, len(starts) - 1, dtype=np.intp)
    # Begin with the row before; while it has ended, go where it points itself: all rows between have ended too.
    # All rows jump at once, so that a run of n siblings takes log2(n) rounds.
    open_rows = np.flatnonzero(parent >= 0)
    while len(open_rows):
        over = ends[parent[open_rows]] <= starts[open_rows]
        open_rows = open_rows[over]
        parent[open_rows] = parent[parent[open_rows]]
        open_rows = open_rows[parent[open_rows] >= 0]
    return parent
