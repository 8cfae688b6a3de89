"""Columns of codes: each distinct name is looked at once, and counting needs no sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.trace.tables import Codes, Ints, Trace

Mask = NDArray[np.bool_]


def for_names(trace: Trace, codes: Codes, answer: Callable[[str], Any], dtype: type[np.generic]) -> NDArray[Any]:
    """`answer` of each row's name, as a column; each distinct name is asked about once. Zero where there is no name."""
    by_code = np.zeros(len(trace.names) + 1, dtype)  # the last place is what -1 reads
    for code in np.flatnonzero(_used(codes, len(trace.names))).tolist():
        by_code[code] = answer(trace.names[code])
    found: NDArray[Any] = by_code[codes]
    return found


def names_like(trace: Trace, codes: Codes, matches: Callable[[str], object]) -> Mask:
    """Which rows have a name that `matches`."""
    return for_names(trace, codes, lambda name: bool(matches(name)), np.bool_)


def distinct(codes: Codes, names: int) -> tuple[Ints, Ints, Ints]:
    """(the codes that occur, in order; per row which of them it is; how often each occurs), of codes below `names`."""
    counts = np.bincount(codes, minlength=names)
    found = np.flatnonzero(counts)
    number = np.zeros(len(counts), np.int64)
    number[found] = np.arange(len(found))
    return found, number[codes], counts[found]


def pairs(first: Ints | Codes, second: Ints | Codes) -> tuple[Ints, Ints, Ints]:
    """(first, second, count) of the pairs that occur, in order. Codes from -1 on."""
    if not len(first):
        empty = np.empty(0, np.int64)
        return empty, empty, empty
    width = int(second.max()) + 2
    keys, counts = np.unique((first.astype(np.int64) + 1) * width + second + 1, return_counts=True)
    return keys // width - 1, keys % width - 1, counts.astype(np.int64)


def _used(codes: Codes, names: int) -> Mask:
    used = np.zeros(names + 1, np.bool_)
    used[codes] = True
    return used[:names]
