"""The interval algebra against sets of integers, for small intervals of every shape."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.trace import intervals as iv

TIME = st.integers(-12, 12)
INTERVALS = st.lists(st.tuples(TIME, TIME), max_size=12)
Pairs = list[tuple[int, int]]


def columns(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def points(pairs: Pairs) -> set[int]:
    """What the intervals cover, unit by unit."""
    return {at for start, end in pairs for at in range(start, end)}


def covered(merged: iv.Merged) -> set[int]:
    """The same of a result, which must be merged: sorted, disjoint, not touching, nothing empty."""
    starts, ends = merged
    assert starts.dtype == ends.dtype == np.int64
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all()
    return points(list(zip(starts.tolist(), ends.tolist(), strict=True)))


@given(INTERVALS)
def test_union_covers_what_any_interval_covers(pairs: Pairs) -> None:
    assert covered(iv.union(*columns(pairs))) == points(pairs)


@given(INTERVALS)
def test_total_is_the_size_of_the_union(pairs: Pairs) -> None:
    assert iv.total(*columns(pairs)) == len(points(pairs))


@given(INTERVALS, INTERVALS)
def test_intersect_and_subtract(a: Pairs, b: Pairs) -> None:
    left, right = iv.union(*columns(a)), iv.union(*columns(b))
    assert covered(iv.intersect(left, right)) == points(a) & points(b)
    assert covered(iv.subtract(left, right)) == points(a) - points(b)


@given(INTERVALS, TIME, TIME)
def test_gaps_are_what_is_left_of_the_window(pairs: Pairs, low: int, high: int) -> None:
    assert covered(iv.gaps(iv.union(*columns(pairs)), low, high)) == set(range(low, high)) - points(pairs)


@given(INTERVALS, TIME, TIME)
def test_clip_cuts_each_interval_to_the_window(pairs: Pairs, low: int, high: int) -> None:
    starts, ends = iv.clip(*columns(pairs), low, max(low, high))
    expected = [(max(start, low), min(end, high)) for start, end in pairs]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [pair for pair in expected if pair[0] < pair[1]]


@given(INTERVALS, INTERVALS)
def test_overlap_per_row(rows: Pairs, others: Pairs) -> None:
    found = iv.overlap_per_row(*columns(rows), iv.union(*columns(others)))
    assert found.tolist() == [len(points([row]) & points(others)) for row in rows]


@given(INTERVALS, st.lists(TIME, max_size=8))
def test_contains_and_covered_before(pairs: Pairs, at: list[int]) -> None:
    merged = iv.union(*columns(pairs))
    assert iv.contains(at, merged).tolist() == [point in points(pairs) for point in at]
    assert iv.covered_before(at, merged).tolist() == [sum(p < point for p in points(pairs)) for point in at]


@given(INTERVALS)
def test_depth_counts_what_runs_at_once(pairs: Pairs) -> None:
    at, count = iv.depth(*columns(pairs))
    for moment in range(-13, 13):
        index = int(np.searchsorted(at, moment, side="right")) - 1
        expected = sum(start <= moment < end for start, end in pairs)
        assert (int(count[index]) if index >= 0 else 0) == expected


@st.composite
def nested(draw: st.DrawFn) -> Pairs:
    """Properly nested intervals, as the operators of one thread are, sorted as the tables are."""
    pairs: Pairs = []

    def fill(low: int, high: int, levels: int) -> None:
        at = low
        while at < high and len(pairs) < 40:
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            pairs.append((start, end))
            if levels and end > start:
                fill(start, end, levels - 1)
            at = end + draw(st.integers(0, 2))
            if start == end:
                at += 1

    fill(0, 30, 3)
    return sorted(pairs, key=lambda pair: (pair[0], -pair[1]))


@given(nested())
def test_parents_are_the_innermost_enclosing_rows(pairs: Pairs) -> None:
    expected = []
    for row, (start, _) in enumerate(pairs):
        around = [other for other in range(row) if pairs[other][0] <= start < pairs[other][1]]
        expected.append(around[-1] if around else -1)
    assert iv.parents(*columns(pairs)).tolist() == expected


@given(nested(), st.lists(st.integers(-1, 31), max_size=10))
def test_innermost_is_the_last_row_that_covers_a_point(pairs: Pairs, at: list[int]) -> None:
    expected = [
        max((row for row, (start, end) in enumerate(pairs) if start <= point < end), default=-1) for point in at
    ]
    assert iv.innermost(*columns(pairs), at).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), max_size=20))
@settings(max_examples=50)
def test_epoch_nanoseconds_do_not_overflow(rows: Pairs) -> None:
    pairs = [(start, start + length) for start, length in rows]
    merged = iv.union(*columns(pairs))
    assert iv.total(*columns(pairs)) == int((merged[1] - merged[0]).sum())
    assert iv.overlap_per_row(*columns(pairs), merged).tolist() == [end - start for start, end in pairs]


def test_a_long_run_of_siblings_has_no_parents_and_one_parent_when_wrapped() -> None:
    start = np.arange(100_000, dtype=np.int64) * 10
    assert (iv.parents(start, start + 10) == -1).all()
    wrapped = iv.parents(np.concatenate(([0], start)), np.concatenate(([10**7], start + 5)))
    assert wrapped[0] == -1 and (wrapped[1:] == 0).all()


def test_nothing_has_no_gaps_parents_or_depth() -> None:
    none = np.zeros(0, np.int64)
    assert iv.total(none, none) == 0
    assert iv.parents(none, none).tolist() == []
    assert iv.innermost(none, none, [3]).tolist() == [-1]
    assert covered(iv.gaps(iv.EMPTY, 0, 3)) == {0, 1, 2}
    assert covered(iv.subtract(iv.EMPTY, iv.union([0], [4]))) == set()
