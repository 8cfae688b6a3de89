"""Caches of ``functools.lru_cache`` around the user's functions: what the timed steps find in them, and do not.

They are what the garbage collector knows of that kind, asked once when the steps begin. Their own books
(``cache_info()``) tell how often something was found; what they hold at the ends of steps tells whether what is
computed had been there before. Those in a loader's workers are not seen.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from types import FunctionType, MethodType
from typing import Any

from .layout import SmallCache
from .places import definition_of

_KIND = type(functools.lru_cache(maxsize=1)(lambda: None))
_MOST_ENTRIES = 4096  # of a cache that is looked into
_LOOKS = 64  # ends of steps


class _Cache:
    """A cache, and the keys that it had at the ends of steps (by their hashes)."""

    def __init__(self, cache: Any) -> None:
        self.cache = weakref.ref(cache)
        self.ever: set[int] = set()
        self.before: set[int] = set()
        self.books: Any = None

    def keys(self) -> set[int]:
        cache = self.cache()
        inside = gc.get_referents(cache) if cache is not None else ()
        return set(map(hash, list(next(filter(_holds_entries, inside), {}))))


class Caches:
    """Told when steps end, and when the timed ones begin and are over; what fails here does not fail in the script."""

    def __init__(self) -> None:
        self._known: list[_Cache] | None = None
        self._looks = 0

    def forget(self) -> None:
        """Another training begins."""
        self._known, self._looks = None, 0

    def look(self) -> None:
        """A step is over before the timed ones."""
        self._looks += 1
        if self._looks > _LOOKS:
            return
        try:
            if self._known is None:
                self._known = [_Cache(each) for each in gc.get_objects() if type(each) is _KIND and _of_users(each)]
            for each in self._known:
                each.ever |= each.keys()
        except Exception:
            self._known = []

    def begin(self) -> None:
        """The timed steps begin."""
        try:
            for each in self._known or ():
                cache = each.cache()
                each.books, each.before = (cache.cache_info(), each.keys()) if cache is not None else (None, set())
        except Exception:
            self._known = []

    def end(self, steps: int) -> list[SmallCache]:
        """Of the user's caches those that were full, and have let something go that they had to take again."""
        known, self._known = self._known or [], None
        try:
            return [each for each in (_judged(one, steps) for one in known) if each is not None]
        except Exception:
            return []


def _judged(one: _Cache, steps: int) -> SmallCache | None:
    cache, books = one.cache(), one.books
    if cache is None or books is None or not books.maxsize:
        return None
    site, now = definition_of(cache), cache.cache_info()
    if site is None or now.hits < books.hits or now.misses <= books.misses:
        return None
    if not books.currsize == now.currsize == books.maxsize:
        return None
    new = one.keys() - one.before
    return SmallCache(
        site=site,
        size=now.maxsize,
        hits=(now.hits - books.hits) / steps,
        misses=(now.misses - books.misses) / steps,
        again=len(new & one.ever) / len(new) if new else 1.0,  # all that was let go came back
        bytes=_bytes(cache) // now.currsize,
    )


def _of_users(cache: Any) -> bool:
    return 0 < (cache.cache_info().maxsize or 0) <= _MOST_ENTRIES and definition_of(cache) is not None


def _holds_entries(value: Any) -> bool:
    """Whether that is the cache's own dict, of what it keeps by key."""
    return type(value) is dict and all(type(each).__name__ == "_lru_list_elem" for each in value.values())


def _bytes(cache: Any) -> int:
    """What a cache's keys and results take: arrays and tensors by their numbers, others by what Python says of them."""
    parts = (each for each in gc.get_referents(cache) if not isinstance(each, (type, FunctionType, MethodType)))
    return sum(_size(each) for each in parts if not _holds_entries(each))


def _size(value: Any, inner: bool = False) -> int:
    if isinstance(value, (tuple, list, dict)) and not inner:
        return sum(_size(each, inner=True) for each in (value.values() if isinstance(value, dict) else value))
    try:
        size = getattr(value, "nbytes", None)
        return size if isinstance(size, int) else sys.getsizeof(value)
    except Exception:  # a sparse tensor's, say
        return 0
