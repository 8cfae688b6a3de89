"""What a cache of functools has let go and takes again, by its books and its keys."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterable

import pytest
import torch

from advisor.harness.caches import Caches
from advisor.harness.layout import SmallCache


def watched(cache: Callable[[int], object], before: Iterable[int], timed: Iterable[int]) -> list[SmallCache]:
    """What is told of the caches in this file after some steps, each of which asks for one thing."""
    seen = Caches()
    for each in before:
        cache(each)
        seen.look()
    seen.begin()
    steps = list(timed)
    for each in steps:
        cache(each)
    return [each for each in seen.end(len(steps)) if each.site.file == __file__]


def cached(size: int | None) -> functools._lru_cache_wrapper[torch.Tensor]:
    return functools.lru_cache(maxsize=size)(lambda number: torch.full((100,), number))


def test_what_was_there_before_is_taken_again() -> None:
    (found,) = watched(cached(2), [*range(6)] * 2, [*range(6)] * 2)
    assert (found.size, found.hits, found.misses, found.again) == (2, 0.0, 1.0, 1.0)
    assert 800 <= found.bytes < 1200  # a tensor of 800 bytes, and its key


def test_what_is_in_a_dict_is_counted() -> None:
    cache = functools.lru_cache(maxsize=2)(lambda number: {"x": torch.full((1000,), number), "name": str(number)})
    (found,) = watched(cache, [*range(6)] * 2, [*range(6)] * 2)
    assert 8000 <= found.bytes < 8600


def test_what_comes_once_is_not_taken_again() -> None:
    (found,) = watched(cached(2), range(6), range(6, 12))
    assert (found.misses, found.again) == (1.0, 0.0)


def test_what_is_found_is_counted() -> None:
    (found,) = watched(cached(2), [0, 1, 2, 3], [0, 0, 0, 1])
    assert (found.hits, found.misses, found.again) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("size", [None, 8, 100_000])
def test_a_cache_that_lets_nothing_go_is_none(size: int | None) -> None:
    assert watched(cached(size), [*range(6)] * 2, range(6)) == []


def test_a_cache_that_was_emptied_meanwhile_is_none() -> None:
    cache = cached(2)

    def asks(number: int) -> object:
        if number == 5:
            cache.cache_clear()
        return cache(number)

    assert watched(asks, [*range(5)] * 2, range(8)) == []


def test_what_has_no_size_fails_nowhere() -> None:
    cache = functools.lru_cache(maxsize=2)(lambda number: torch.eye(4).to_sparse() * number)
    (found,) = watched(cache, [*range(4)] * 2, range(4))
    assert found.again == 1.0


def test_no_cache_is_kept_alive() -> None:
    cache, seen = cached(2), Caches()
    for number in range(4):
        cache(number)
        seen.look()
    seen.begin()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
    assert [each for each in seen.end(1) if each.site.file == __file__] == []
