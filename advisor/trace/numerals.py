"""Numbers as trace files write them (numbers, digit strings, nulls, digits to the nanosecond) → numpy columns."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from advisor.trace.events import Scalar

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# From here on float64 resolves less than 1 ns of a time in µs: 2**43 µs is 102 days, an epoch time 50 years.
INEXACT_FROM = float(1 << 43)
# Times beyond (the year 2115 as epoch µs) are damage, and so are times so long before the epoch or the base.
ABSURD_FROM = 4.6e15
ABSURD_BELOW = -1e15
# Durations from here on (a year) are damage. Sums and differences of times and durations so fit into int64 nanoseconds.
ABSURD_DURATION = 3.2e13
# Up to here 1000 times a float64 is within half a nanosecond of what was written: 2**51 / 1000.
_PLAIN_BELOW = 2.2e12
_INT64 = 2**63


class InexactError(Exception):
    """Timestamps need their digits: decode the events again, as :class:`ExactEvent`."""


def integers(values: Sequence[Scalar], default: int) -> Ints:
    """Numbers, digit strings and nulls as int64; `default` for what is none."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(value, default) for value in values], np.int64)


def integer(value: Scalar, default: int) -> int:
    """One number, digit string or null as an integer of 64 bits; `default` for what is none."""
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        try:
            number = int(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return default
    return number if -_INT64 <= number < _INT64 else default


def floats(values: Sequence[Scalar]) -> NDArray[np.float64]:
    """Numbers, number strings and nulls as float64; NaN for what is none."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values], np.float64)


def _float(value: Scalar) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def small(values: Ints) -> NDArray[np.int32]:
    """int64 → int32; -1 for what does not fit."""
    fits = (values >= -(2**31)) & (values < 2**31)
    return np.where(fits, values, -1).astype(np.int32)


def product(raw: bytes) -> int:
    """``[64, 2, 1]`` → 128; 0 for what is no list of positive numbers."""
    try:
        sizes = [int(size) for size in json.loads(raw)]
        found = math.prod(sizes)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0
    return found if sizes and all(size > 0 for size in sizes) and found < _INT64 else 0


def nanoseconds(microseconds: NDArray[np.float64], largest: float) -> Ints:
    """µs → ns, rounded once. `largest` is the largest magnitude among them.

    Where that is large the fraction is scaled by itself, so that the last digit is kept.
    """
    if largest < _PLAIN_BELOW:
        scaled: Ints = np.rint(microseconds * 1000.0).astype(np.int64)
        return scaled
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def times(stamps: Sequence[Scalar]) -> tuple[Ints, Bools]:
    """Timestamps in µs as (int64 ns, which of them are usable). Raises InexactError where float64 loses digits."""
    ts = floats(stamps)
    first, last = float(ts.min()), float(ts.max())
    usable = np.ones(len(ts), np.bool_)
    if not (first > ABSURD_BELOW and last < ABSURD_FROM):  # NaN compares false
        usable = (ts > ABSURD_BELOW) & (ts < ABSURD_FROM)
        ts = np.where(usable, ts, 0.0)
        first, last = float(ts.min()), float(ts.max())
    largest = max(-first, last)
    if largest >= INEXACT_FROM and (ts != np.floor(ts)).any():
        raise InexactError
    return nanoseconds(ts, largest), usable


def durations(values: Sequence[Scalar]) -> tuple[Ints, Bools | None, int]:
    """Durations in µs as (int64 ns, which of them are usable or None for all, how many were negative).

    What is missing or negative counts as none.
    """
    dur = floats(values)
    shortest, longest = float(dur.min()), float(dur.max())
    if shortest >= 0 and longest < ABSURD_DURATION:  # NaN compares false
        return nanoseconds(dur, longest), None, 0
    dur = np.where(np.isnan(dur), 0.0, dur)
    negative = int((dur < 0).sum())
    dur = np.maximum(dur, 0.0)
    usable = dur < ABSURD_DURATION
    return nanoseconds(np.where(usable, dur, 0.0), ABSURD_DURATION), usable, negative


def exact_times(raws: Sequence[Raw]) -> tuple[Ints, Bools]:
    """The digits of timestamps in µs as (int64 ns, which of them are usable)."""
    text = b" ".join(raws)
    data = np.frombuffer(text + b" ", np.uint8)
    points, spaces = np.flatnonzero(data == 46), np.flatnonzero(data == 32)
    # As Kineto writes them, with three decimals each: the digits are the nanoseconds. At most 16 + 3 digits.
    if len(points) == len(spaces) == len(raws) and (spaces - points == 4).all():
        digits = text.replace(b".", b"").replace(b" ", b"")
        if digits.isdigit() and int(np.diff(points, prepend=-5).max()) <= 21:
            ns: Ints = np.fromstring(text.replace(b".", b""), np.int64, sep=" ")
            if len(ns) == len(raws):
                return ns, ns < int(ABSURD_FROM) * 1000  # with a digit before the point, and no sign
    found = [_exact_time(raw) for raw in raws]
    usable = np.fromiter((time is not None for time in found), np.bool_, len(found))
    return np.array([time or 0 for time in found], np.int64), usable


def _exact_time(raw: Raw) -> int | None:
    try:
        time = Decimal(bytes(raw).decode().strip('" \t\r\n'))
        if not time.is_finite() or not Decimal(ABSURD_BELOW) < time < Decimal(ABSURD_FROM):
            return None
        return int((time * 1000).to_integral_value())
    except (InvalidOperation, UnicodeDecodeError):
        return None
