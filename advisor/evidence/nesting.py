"""How operators nest on their threads: parents, self time, and the operator around a runtime call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from advisor.trace import intervals
from advisor.trace.tables import Ints, Spans, Trace


@dataclass(frozen=True, eq=False)
class Nesting:
    """Rows are rows of ``Trace.operators``; -1 means none."""

    trace: Trace

    @cached_property
    def parent(self) -> Ints:
        """The innermost operator around each operator, on the same thread."""
        spans = self.trace.operators
        parent = np.full(len(spans), -1, np.int64)
        for lane, rows in self._by_lane.items():
            found = self._parents_in_lane[lane]
            parent[rows] = np.where(found >= 0, rows[found], -1)
        return parent

    @cached_property
    def self_ns(self) -> Ints:
        """Duration of each operator without the operators directly inside it; never negative."""
        spans = self.trace.operators
        duration = spans.end - spans.start
        inner = np.flatnonzero(self.parent >= 0)
        # A child that sticks out of its parent (rounding in old files) takes from it only what lies inside.
        outer = self.parent[inner]
        shared = np.minimum(spans.end[inner], spans.end[outer]) - spans.start[inner]
        # Summed as float64: exact up to 104 days of ns, and no overflow where a damaged file has absurd durations.
        taken = np.bincount(outer, weights=np.maximum(0, shared), minlength=len(spans))
        own: Ints = np.maximum(0, duration - np.minimum(taken, duration).astype(np.int64))
        return own

    @cached_property
    def outermost(self) -> Ints:
        """The outermost operator around each operator (itself where it is that)."""
        top: Ints = np.arange(len(self.parent), dtype=np.int64)
        while True:
            up = self.parent[top]
            inner = up >= 0
            if not inner.any():
                return top
            top[inner] = up[inner]

    def around(self, spans: Spans, which: Ints) -> Ints:
        """The innermost operator around the start of each of the rows `which` of `spans`, on the same thread."""
        operators = self.trace.operators
        found = np.full(len(which), -1, np.int64)
        lanes, starts = spans.lane[which], spans.start[which]
        for lane, rows in self._by_lane.items():
            asked = np.flatnonzero(lanes == lane)
            if not len(asked):
                continue
            inner = intervals.innermost(
                operators.start[rows], operators.end[rows], starts[asked], self._parents_in_lane[lane]
            )
            found[asked] = np.where(inner >= 0, rows[inner], -1)
        return found

    def outermost_around(self, spans: Spans, which: Ints) -> Ints:
        """The outermost operator, likewise; -1 outside of any."""
        inner = self.around(spans, which)
        if not len(self.trace.operators):
            return inner
        return np.where(inner >= 0, self.outermost[inner], -1)

    @cached_property
    def _parents_in_lane(self) -> dict[int, NDArray[np.intp]]:
        """Lane → per row of ``_by_lane``, which of these rows is its parent."""
        spans = self.trace.operators
        return {lane: intervals.parents(spans.start[rows], spans.end[rows]) for lane, rows in self._by_lane.items()}

    @cached_property
    def _by_lane(self) -> dict[int, Ints]:
        """Lane → its rows by start, the longer one first where two begin together."""
        spans = self.trace.operators
        if not len(spans):
            return {}  # a trace of the GPU alone: np.split would make one piece of nothing
        order = np.argsort(spans.lane, kind="stable").astype(np.int64)  # by start, longer first, they are already
        sorted_lanes = spans.lane[order]
        first = np.flatnonzero(np.concatenate(([True], sorted_lanes[1:] != sorted_lanes[:-1])))
        lanes = sorted_lanes[first]
        return {int(lane): rows for lane, rows in zip(lanes, np.split(order, first[1:]), strict=True)}
