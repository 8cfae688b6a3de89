"""``Coverage``: a set of moments that can be asked how much of a window it covers.

Breakdowns, gaps and overlap are all questions to such sets, vectorized over the windows asked; the algebra is
:mod:`advisor.trace.intervals`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.trace import intervals
from advisor.trace.tables import Ints


@dataclass(frozen=True, eq=False)
class Coverage:
    """Disjoint, sorted, non-empty intervals [start, end) in ns. Make one with :meth:`of`."""

    start: Ints
    end: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints) -> Coverage:
        """The union of any intervals; empty and negative ones count for nothing."""
        return cls(*intervals.union(start, end))

    @classmethod
    def empty(cls) -> Coverage:
        return cls(*intervals.EMPTY)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """ns covered in all."""
        return int((self.end - self.start).sum())

    def within(self, start: Ints, end: Ints) -> Ints:
        """ns covered inside each window [start, end); 0 for windows that end before they start."""
        return intervals.overlap_per_row(start, end, (self.start, self.end))

    def total_within(self, start: int, end: int) -> int:
        """ns covered inside one window."""
        return int(self.within(np.array([start], np.int64), np.array([end], np.int64))[0])

    def contains(self, moments: Ints) -> NDArray[np.bool_]:
        """Whether each moment is covered."""
        return intervals.contains(moments, (self.start, self.end))

    def union(self, *others: Coverage) -> Coverage:
        sets = (self, *others)
        return Coverage.of(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))

    def minus(self, other: Coverage) -> Coverage:
        return Coverage(*intervals.subtract((self.start, self.end), (other.start, other.end)))
