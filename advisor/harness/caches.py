"""Caches of ``functools.lru_cache`` around the user's functions: what the timed steps find in them, and do not.

They are what the garbage collector knows of that kind, asked once before these steps and once after: their own books
(``cache_info()``) say the rest. Those in a loader's workers are not seen.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

from .layout import SmallCache
from .places import definition_of

_KIND = type(functools.lru_cache(maxsize=1)(lambda: None))


class Caches:
    """Told when the timed steps begin, and when they are over; what fails here does not fail in the script."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, Any]] = []  # a cache, and its books

    def begin(self) -> None:
        caches = (each for each in gc.get_objects() if type(each) is _KIND)
        self._before = [(each, each.cache_info()) for each in caches if _is_full(each)]

    def end(self, steps: int) -> list[SmallCache]:
        """Of the user's caches those that were full all the time, and have let something go."""
        before, self._before = self._before, []
        found = []
        for cache, books in before:
            site, now = definition_of(cache), cache.cache_info()
            if site is None or now.currsize < now.maxsize or now.misses <= books.misses:
                continue
            found.append(
                SmallCache(
                    site=site,
                    size=now.maxsize,
                    hits=(now.hits - books.hits) / steps,
                    misses=(now.misses - books.misses) / steps,
                    computed=now.misses,
                    bytes=_bytes(cache) // now.currsize,
                )
            )
        return found


def _is_full(cache: Any) -> bool:
    books = cache.cache_info()
    return bool(books.maxsize) and books.currsize == books.maxsize


def _bytes(cache: Any) -> int:
    """What a cache holds: arrays and tensors by their numbers, anything else by what Python says of it alone."""
    return sum(map(_size, gc.get_referents(cache)))


def _size(value: Any, inner: bool = False) -> int:
    if isinstance(value, (tuple, list)) and not inner:
        return sum(_size(each, inner=True) for each in value)
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else sys.getsizeof(value)
