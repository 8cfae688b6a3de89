"""The parts of a file, in its order → whole columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from advisor.trace.fill import NAME_COLUMNS, Column, Part, same_lane

# So many parts of a column are made one array. Hundreds of thousands of small ones leave a heap full of holes: without
# this, reading 1 GB of JSON leaves 140 MB more behind than its columns take.
TOGETHER = 64


class Recoding:
    """A filler's codes → those of the file; -1 stays -1."""

    def __init__(self) -> None:
        self._codes = np.full(256, -1, np.int32)
        self._count = 0

    def extend(self, codes: Iterable[int]) -> None:
        """The next codes of the filler stand for `codes`."""
        for code in codes:
            if self._count == len(self._codes) - 1:  # the last place is what the code -1 reads
                self._codes = np.concatenate((self._codes, np.full_like(self._codes, -1)))
            self._codes[self._count] = code
            self._count += 1

    def __getitem__(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        return self._codes[codes]


class Columns:
    """Collects parts. ``parts[table][column]`` is a list of arrays; codes are into ``names`` and ``lanes``."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.name_codes: dict[str, int] = {}
        self.lanes: list[tuple[str, str]] = []
        self._lane_codes: dict[tuple[str, str], int] = {}
        self._names_of: dict[Hashable, Recoding] = defaultdict(Recoding)
        self._lanes_of: dict[Hashable, Recoding] = defaultdict(Recoding)
        self._fresh: Counter[str] = Counter()  # parts of each table that are not together yet
        self.parts: dict[str, dict[str, list[Column]]] = defaultdict(lambda: defaultdict(list))
        self.flows: Counter[str] = Counter()
        self.labels: dict[tuple[str, str, str], str] = {}
        self.dropped = 0
        self.negative = 0

    def add(self, part: Part, filler: Hashable = None) -> None:
        """Adds the next part of the file. `filler` says who made it: each has codes of its own."""
        names, lanes = self._names_of[filler], self._lanes_of[filler]
        names.extend(map(self.name_code, part.names))
        lanes.extend(map(self._lane_code, part.lanes))
        for table, columns in part.tables.items():
            into = self.parts[table]
            for column, values in columns.items():
                if column in NAME_COLUMNS:
                    values = names[values]
                elif column == "lane":
                    values = lanes[values]
                into[column].append(values)
            self._fresh[table] += 1
            if self._fresh[table] == TOGETHER:
                self._fresh[table] = 0
                for arrays in into.values():
                    arrays[-TOGETHER:] = [np.concatenate(arrays[-TOGETHER:])]
        self.flows.update(part.flows)
        for key, label in part.labels.items():
            self.labels.setdefault(key, label)
        self.dropped += part.dropped
        self.negative += part.negative

    def name_code(self, name: str) -> int:
        """The code of `name`, a new one if need be."""
        code = self.name_codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def _lane_code(self, lane: tuple[str, str]) -> int:
        code = self._lane_codes.setdefault(same_lane(*lane), len(self.lanes))
        if code == len(self.lanes):
            self.lanes.append(lane)
        return code

    def take(self, table: str, name: str, dtype: type[np.generic]) -> Column | None:
        """The parts of one column in one array, which are then no longer kept here; None where there are none."""
        parts = self.parts[table].pop(name, None)
        return np.concatenate(parts).astype(dtype, copy=False) if parts else None
