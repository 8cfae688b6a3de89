"""Events → a :class:`Part`: the columns of one piece of the file. The hot loop of reading, in whichever process.

Strings are coded where they are met; a part says which codes are new in it, so that parts from several processes can be
put together in the order of the file and give the same tables as one process would.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from advisor.trace.categories import Table, table_of
from advisor.trace.events import NO_ARGS, AnyEvent, Args, ExactEvent, Scalar, decode_array
from advisor.trace.numerals import (
    Bools,
    InexactError,
    Ints,
    durations,
    exact_times,
    floats,
    integers,
    product,
    small,
    times,
)

Column = NDArray[Any]

_GIVEN: Callable[[Args], tuple[Raw, Raw, Raw]] = attrgetter("dims", "types", "concrete")

NAME_COLUMNS = frozenset(("name", "shapes", "dtypes", "values"))
"""Columns of codes of names; ``lane`` is one of codes of lanes."""


class Codes(dict[Any, int]):
    """Key → code, in order of first appearance. `make` turns a new key into a code."""

    def __init__(self, make: Callable[[Any], int]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> int:
        code = self[key] = self._make(key)
        return code


@dataclass
class Part:
    """What one piece of the file holds. ``names`` and ``lanes`` are those that its filler met here first."""

    tables: dict[str, dict[str, Column]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    lanes: list[tuple[str, str]] = field(default_factory=list)
    flows: Counter[str] = field(default_factory=Counter)
    labels: dict[tuple[str, str, str], str] = field(default_factory=dict)
    dropped: int = 0  # events without a usable time
    negative: int = 0  # events of negative duration


def same_lane(pid: str, tid: str) -> tuple[str, str]:
    """A key for a thread: the same one as a string and as a number, or "stream 7" and 7, is one lane."""
    return pid, tid.removeprefix("stream ")


@dataclass(frozen=True)
class Piece:
    """Events, and the JSON (an array of them, or one text each) that they were decoded from."""

    events: Sequence[AnyEvent]
    exactly: Callable[[], Sequence[AnyEvent]]  # the same events with timestamps as digits


class Filler:
    """Makes parts. ``exact`` is set by the first timestamp that needs its digits: from then on all come as digits."""

    def __init__(self) -> None:
        self.exact = False
        self._names = Codes(self._new_name)
        self._name_count = 0
        self._lanes = Codes(self._new_lane)
        self._lane_by_key: dict[tuple[str, str], int] = {}
        self._texts = Codes(self._new_text)
        self._texts[b""] = -1
        self._sizes = Codes(product)
        self._part = Part()

    def fill(self, array: bytes | memoryview) -> Part | None:
        """The part of a JSON array of events; None where it does not decode as it is."""
        try:
            events = decode_array(array, self.exact)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self.part(Piece(events, lambda: decode_array(array, True)))

    def part(self, piece: Piece) -> Part:
        """The part of events that are decoded already."""
        self._part = part = Part()
        try:
            self._add(piece.events)
        except InexactError:
            self.exact = True
            self._part = part = Part(names=part.names, lanes=part.lanes)
            self._add(piece.exactly())
        return part

    def _new_name(self, name: Scalar) -> int:
        text = name if isinstance(name, str) else "" if name is None else str(name)
        if text is not name:
            return self._names[text]
        self._part.names.append(text)
        self._name_count += 1
        return self._name_count - 1

    def _new_text(self, raw: bytes) -> int:
        """A list as written → the code of the same list on one line without spaces around."""
        try:
            text = msgspec.json.encode(msgspec.json.decode(raw)).decode()
        except (ValueError, RecursionError):
            text = raw.decode("utf-8", errors="replace")
        return self._names[text]

    def _new_lane(self, key: tuple[Scalar, Scalar]) -> int:
        pid, tid = (("" if part is None else str(part)).strip() for part in key)
        same = same_lane(pid, tid)
        if same not in self._lane_by_key:
            self._lane_by_key[same] = len(self._lane_by_key)
            self._part.lanes.append((pid, tid))
        return self._lane_by_key[same]

    def _add(self, events: Sequence[AnyEvent]) -> None:
        """Raises InexactError when float64 timestamps lose digits that matter."""
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
                by_table[table] = by_table[table] + group if table in by_table else group
        starts = {table: _times(group) for table, group in by_table.items()}
        for category, group, phases in others:
            self._other_phases(category, group, phases)
        for table, group in by_table.items():
            self._add_table(table, group, *starts[table])

    def _other_phases(self, category: str | None, group: list[AnyEvent], phases: list[str]) -> None:
        flows = phases.count("s") + phases.count("t") + phases.count("f")
        if flows:
            self._part.flows[category or ""] += flows
        if flows == len(group):
            return
        memory = [event for event in group if event.name == "[memory]" and event.ph in ("i", "I")]
        if memory:
            self._add_memory(memory)
        if len(memory) + flows == len(group):
            return
        for event in group:
            if event.ph == "M" and event.args is not None:
                value = event.args.name if event.args.name is not None else event.args.labels
                if value is not None:
                    pid, tid = str(event.pid), str(event.tid).removeprefix("stream ")
                    self._part.labels.setdefault((str(event.name), pid, tid), str(value).strip())

    def _add_table(self, table: Table, group: list[AnyEvent], start: Ints, usable: Bools) -> None:
        duration, known, negative = durations([event.dur for event in group])
        self._part.negative += negative
        if known is not None:
            usable = usable & known
        args = [event.args or NO_ARGS for event in group]
        names = self._names
        count = len(group)
        columns: dict[str, Column] = {
            "start": start,
            "end": start + duration,
            "name": np.fromiter([names[event.name] for event in group], np.int32, count),
            "lane": self._lane_column(group),
        }
        if table not in ("python", "overheads"):
            external = integers([a.external for a in args], -1)
            if external.min() < 0:
                external = np.where(external < 0, integers([a.external_2021 for a in args], -1), external)
            columns["external"] = external
        if table in ("kernels", "copies", "runtime", "syncs"):
            columns["correlation"] = integers([a.correlation for a in args], -1)
        if table == "operators":
            columns["sequence"] = integers([a.sequence for a in args], -1)
            columns["shapes"], columns["dtypes"], columns["values"] = self._text_columns(args)
        elif table in ("kernels", "copies"):
            self._device_columns(args, columns)
        if not usable.all():
            self._part.dropped += int((~usable).sum())
            columns = {column: values[usable] for column, values in columns.items()}
        self._part.tables[table] = columns

    def _lane_column(self, group: list[AnyEvent]) -> NDArray[np.int32]:
        lanes = self._lanes
        tids = [event.tid for event in group]
        pids = [event.pid for event in group]
        count, pid, tid = len(group), pids[0], tids[0]
        # Most pieces hold a table's events of one thread.
        if pids.count(pid) == count and tids.count(tid) == count:
            return np.full(count, lanes[pid, tid], np.int32)
        return np.fromiter([lanes[key] for key in zip(pids, tids, strict=True)], np.int32, count)

    def _text_columns(self, args: list[Args]) -> NDArray[np.int32]:
        """Codes of what operators were given: a row each for the shapes, the types and the values."""
        texts = self._texts
        # JSON has no NUL; joining and splitting takes a third of the time of bytes(raw) for each.
        raws = b"\0".join(chain.from_iterable(map(_GIVEN, args))).split(b"\0")
        codes: NDArray[np.int32] = np.fromiter([texts[raw] for raw in raws], np.int32, 3 * len(args))
        by_kind: NDArray[np.int32] = codes.reshape(-1, 3).T
        return by_kind

    def _device_columns(self, args: list[Args], columns: dict[str, Column]) -> None:
        sizes, count = self._sizes, len(args)
        columns["device"] = small(integers([a.device for a in args], -1))
        columns["stream"] = small(integers([a.stream for a in args], -1))
        columns["bytes"] = integers([a.bytes for a in args], 0)
        for column in ("grid", "block"):
            texts = b"\0".join(map(attrgetter(column), args)).split(b"\0")
            columns[column] = np.fromiter([sizes[text] for text in texts], np.int64, count)
        columns["occupancy"] = floats([a.occupancy for a in args])

    def _add_memory(self, group: list[AnyEvent]) -> None:
        at, usable = _times(group)
        self._part.dropped += int((~usable).sum())
        args = [event.args or NO_ARGS for event in group]
        self._part.tables["memory"] = {
            "at": at[usable],
            "bytes": integers([a.memory_bytes for a in args], 0)[usable],
            "allocated": integers([a.allocated for a in args], -1)[usable],
            "reserved": integers([a.reserved for a in args], -1)[usable],
            "device_type": small(integers([a.device_type for a in args], -1))[usable],
            "device": small(integers([a.device_id for a in args], -1))[usable],
        }


def _times(group: Sequence[AnyEvent]) -> tuple[Ints, Bools]:
    stamps: list[Any] = [event.ts for event in group]
    return exact_times(cast("list[Raw]", stamps)) if isinstance(group[0], ExactEvent) else times(stamps)
