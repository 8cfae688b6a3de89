"""Lists of events → columns, piece by piece; then, at the end, the sorted tables of a :class:`Trace`."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from advisor.trace.categories import Table, table_of
from advisor.trace.events import ABSENT, NO_ARGS, AnyEvent, Args, ExactEvent, Scalar

Ints = NDArray[np.int64]

# From here on float64 resolves less than 1 ns of a time in µs: 2**43 µs is 102 days, an epoch time 50 years.
INEXACT_FROM = float(1 << 43)
# Times beyond (the year 2115 as epoch µs) are damage; below, start + duration fits into int64 nanoseconds.
ABSURD_FROM = 4.6e15
_INT64 = 2**63


class InexactError(Exception):
    """Timestamps need their digits: decode the events again, as :class:`ExactEvent`."""


class Codes(dict[Any, int]):
    """Key → code, in order of first appearance. `make` turns a new key into a code."""

    def __init__(self, make: Callable[[Any], int]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> int:
        code = self[key] = self._make(key)
        return code


def integers(values: Sequence[Scalar], default: int) -> Ints:
    """Numbers, digit strings and nulls as int64; `default` for what is none."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value, default) for value in values], np.int64)


def _integer(value: Scalar, default: int) -> int:
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


def nanoseconds(microseconds: NDArray[np.float64]) -> Ints:
    """µs → ns, rounded once: the fraction is scaled by itself, so that large times keep their last digit."""
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def _exact_times(raws: Sequence[Raw]) -> tuple[Ints, NDArray[np.bool_]]:
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
                return ns, ns < int(ABSURD_FROM) * 1000
    times = [_exact_time(raw) for raw in raws]
    usable = np.fromiter((time is not None for time in times), np.bool_, len(times))
    return np.array([time or 0 for time in times], np.int64), usable


def _exact_time(raw: Raw) -> int | None:
    try:
        time = Decimal(bytes(raw).decode().strip('" \t\r\n'))
        if not time.is_finite() or abs(time) >= Decimal(ABSURD_FROM):
            return None
        return int((time * 1000).to_integral_value())
    except (InvalidOperation, UnicodeDecodeError):
        return None


class Columns:
    """Collects events into parts of columns. ``parts[table][column]`` is a list of arrays."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.name_codes = Codes(self._new_name)
        self.lanes: list[tuple[str, str]] = []
        self._lane_by_key: dict[tuple[str, str], int] = {}
        self._lane_codes = Codes(self._new_lane)
        self._texts = Codes(self._new_text)
        self._sizes = Codes(_product)
        self.parts: dict[str, dict[str, list[NDArray[Any]]]] = defaultdict(lambda: defaultdict(list))
        self.flows: Counter[str] = Counter()
        self.labels: dict[tuple[str, str, str], str] = {}
        self.dropped = 0
        self.negative = 0

    def _new_name(self, name: Scalar) -> int:
        text = name if isinstance(name, str) else "" if name is None else str(name)
        if text is not name:
            return self.name_codes[text]
        self.names.append(text)
        return len(self.names) - 1

    def _new_text(self, raw: bytes) -> int:
        """A list as written → the code of the same list on one line without spaces around."""
        try:
            text = msgspec.json.encode(msgspec.json.decode(raw)).decode()
        except (ValueError, RecursionError):
            text = raw.decode("utf-8", errors="replace")
        return self.name_codes[text]

    def _new_lane(self, key: tuple[Scalar, Scalar]) -> int:
        """The same thread as a string and as a number, or "stream 7" and 7, is one lane."""
        pid, tid = (("" if part is None else str(part)).strip() for part in key)
        same = (pid, tid.removeprefix("stream "))
        if same not in self._lane_by_key:
            self._lane_by_key[same] = len(self.lanes)
            self.lanes.append((pid, tid))
        return self._lane_by_key[same]

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Raises InexactError, before anything was added, when float64 timestamps lose digits that matter."""
        groups: defaultdict[str | None, list[AnyEvent]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        by_table: dict[Table, list[AnyEvent]] = {}
        others: list[tuple[str | None, list[AnyEvent], list[str]]] = []
        for category, group in groups.items():
            phases = [event.ph for event in group]
            complete = phases.count("X")
            table = table_of(category)
            if complete < len(group):
                others.append((category, group, phases))
                if complete:
                    group = [event for event in group if event.ph == "X"]
            if table is not None and complete:
                by_table[table] = by_table.get(table, []) + group if table in by_table else group
        times = {table: _times(group) for table, group in by_table.items()}
        for category, group, phases in others:
            self._other_phases(category, group, phases)
        for table, group in by_table.items():
            self._add_table(table, group, *times[table])

    def _other_phases(self, category: str | None, group: list[AnyEvent], phases: list[str]) -> None:
        flows = phases.count("s") + phases.count("t") + phases.count("f")
        if flows:
            self.flows[category or ""] += flows
        if flows == len(group):
            return
        memory = [event for event in group if event.name == "[memory]" and event.ph in ("i", "I")]
        if memory:
            self._add_memory(memory)
        for event in group:
            if event.ph == "M" and event.args is not None:
                value = event.args.name if event.args.name is not None else event.args.labels
                if value is not None:
                    pid, tid = str(event.pid), str(event.tid).removeprefix("stream ")
                    self.labels.setdefault((str(event.name), pid, tid), str(value).strip())

    def _add_table(self, table: Table, group: list[AnyEvent], start: Ints, usable: NDArray[np.bool_]) -> None:
        dur = floats([event.dur for event in group])
        missing = np.isnan(dur)
        if missing.any():
            dur = np.where(missing, 0.0, dur)
        backwards = dur < 0
        if backwards.any():
            self.negative += int(backwards.sum())
            dur = np.where(backwards, 0.0, dur)
        usable &= dur < ABSURD_FROM
        end = start + nanoseconds(np.where(usable, dur, 0.0))
        keep = None
        if not usable.all():
            keep = usable
            self.dropped += int((~usable).sum())
        args = [event.args or NO_ARGS for event in group]
        names, lanes = self.name_codes, self._lane_codes
        count = len(group)
        columns: dict[str, NDArray[Any]] = {
            "start": start,
            "end": end,
            "name": np.fromiter([names[event.name] for event in group], np.int32, count),
            "lane": np.fromiter([lanes[event.pid, event.tid] for event in group], np.int32, count),
        }
        if table not in ("python", "overheads"):
            external = integers([a.external for a in args], -1)
            if (external < 0).any():
                external = np.where(external < 0, integers([a.external_2021 for a in args], -1), external)
            columns["external"] = external
        if table in ("kernels", "copies", "runtime", "syncs"):
            columns["correlation"] = integers([a.correlation for a in args], -1)
        if table == "operators":
            self._operator_columns(args, columns)
        elif table in ("kernels", "copies"):
            self._device_columns(table, args, columns)
        parts = self.parts[table]
        for column, values in columns.items():
            parts[column].append(values if keep is None else values[keep])

    def _operator_columns(self, args: list[Args], columns: dict[str, NDArray[Any]]) -> None:
        texts, count = self._texts, len(args)
        columns["sequence"] = integers([a.sequence for a in args], -1)
        columns["shapes"] = np.fromiter(
            [-1 if (raw := a.dims) is ABSENT else texts[bytes(raw)] for a in args], np.int32, count
        )
        columns["dtypes"] = np.fromiter(
            [-1 if (raw := a.types) is ABSENT else texts[bytes(raw)] for a in args], np.int32, count
        )
        columns["values"] = np.fromiter(
            [-1 if (raw := a.concrete) is ABSENT else texts[bytes(raw)] for a in args], np.int32, count
        )

    def _device_columns(self, table: Table, args: list[Args], columns: dict[str, NDArray[Any]]) -> None:
        sizes, count = self._sizes, len(args)
        columns["device"] = _small(integers([a.device for a in args], -1))
        columns["stream"] = _small(integers([a.stream for a in args], -1))
        columns["bytes"] = integers([a.bytes for a in args], 0)
        columns["grid"] = np.fromiter([sizes[bytes(a.grid)] for a in args], np.int64, count)
        columns["block"] = np.fromiter([sizes[bytes(a.block)] for a in args], np.int64, count)
        columns["occupancy"] = floats([a.occupancy for a in args])

    def _add_memory(self, group: list[AnyEvent]) -> None:
        at, usable = _times(group)
        self.dropped += int((~usable).sum())
        args = [event.args or NO_ARGS for event in group]
        parts = self.parts["memory"]
        parts["at"].append(at[usable])
        parts["bytes"].append(integers([a.memory_bytes for a in args], 0)[usable])
        parts["allocated"].append(integers([a.allocated for a in args], -1)[usable])
        parts["reserved"].append(integers([a.reserved for a in args], -1)[usable])
        parts["device_type"].append(_small(integers([a.device_type for a in args], -1))[usable])
        parts["device"].append(_small(integers([a.device_id for a in args], -1))[usable])

    def column(self, table: str, name: str, dtype: type[np.generic], default: float = -1) -> NDArray[Any]:
        """The parts of one column in one array; filled with `default` where the table has no such column."""
        parts = self.parts[table]
        if parts.get(name):
            return np.concatenate(parts[name]).astype(dtype, copy=False)
        return np.full(sum(map(len, parts.get("start", parts.get("at", [])))), default, dtype)


def _small(values: Ints) -> NDArray[np.int32]:
    """int64 → int32; -1 for what does not fit."""
    fits = (values >= -(2**31)) & (values < 2**31)
    return np.where(fits, values, -1).astype(np.int32)


def _product(raw: bytes) -> int:
    """``[64, 2, 1]`` → 128; 0 for what is no list of positive numbers."""
    try:
        sizes = [int(size) for size in json.loads(raw)]
        product = math.prod(sizes)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0
    return product if sizes and all(size > 0 for size in sizes) and product < _INT64 else 0


def _times(group: Sequence[AnyEvent]) -> tuple[Ints, NDArray[np.bool_]]:
    """Timestamps as (int64 ns, which of them are usable). Raises InexactError where float64 loses digits."""
    stamps: list[Any] = [event.ts for event in group]
    if isinstance(group[0], ExactEvent):
        return _exact_times(stamps)
    ts = floats(stamps)
    size = np.abs(ts)
    usable = size < ABSURD_FROM  # NaN compares false
    if not usable.all():
        ts, size = np.where(usable, ts, 0.0), np.where(usable, size, 0.0)
    if size.max() >= INEXACT_FROM and (ts != np.floor(ts)).any():
        raise InexactError
    return nanoseconds(ts), usable
