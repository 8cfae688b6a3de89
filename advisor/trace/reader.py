"""``read_trace``: a Kineto JSON file → :class:`Trace`."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.errors import BAD_TRACE, AdvisorError
from advisor.harness.machine.environment import usable_cpus
from advisor.trace.categories import copy_kind, is_annotation, is_copy, is_pageable, is_step
from advisor.trace.columns import Columns
from advisor.trace.decoding import WORTH_WORKERS
from advisor.trace.document import Around, Document, loads
from advisor.trace.numerals import integer
from advisor.trace.source import Blocks
from advisor.trace.tables import Copies, Kernels, Lane, MemoryEvents, Operators, Spans, Trace

Bools = NDArray[np.bool_]


def read_trace(path: str | os.PathLike[str], *, limit_bytes: int | None = None, workers: int | None = None) -> Trace:
    """Reads ``.json``, ``.json.gz`` or ``.json.zst`` (told by content), a local path or any URL that fsspec knows.

    `limit_bytes` bounds the decompressed size (default: 1 GiB, or 100 times the compressed file). A long file (from
    about 100 MB of JSON on) is decoded by `workers` processes: one per usable core unless told otherwise, none for 0
    or 1; the result is the same. What could not be read is in ``Trace.warnings``: a file cut short gives the events up
    to the last whole one. Raises AdvisorError: BAD_TRACE for a file that is empty, no JSON, no trace, or holds no event
    of the profiler; USAGE for a path that cannot be opened.
    """
    name = os.fspath(path)
    document = Document(Blocks(name, limit_bytes))
    columns = Columns()
    for part, filler in document.parts(_workers() if workers is None else workers):
        columns.add(part, filler)
    trace = _assemble(name, document, columns)
    if document.blocks.expected >= WORTH_WORKERS:
        _give_back_heap()
    return trace


def _workers() -> int:
    """Beyond eight, decompressing and cutting, which one process does, takes longer than decoding."""
    return min(8, int(usable_cpus()))


def _give_back_heap() -> None:
    """Returns to the system what is free: glibc would keep as much as the columns take, in the holes of its heap."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _assemble(path: str, document: Document, columns: Columns) -> Trace:
    warnings = list(document.warnings)
    if columns.dropped:
        warnings.append(f"{columns.dropped} event(s) without a usable time were left out")
    if columns.negative:
        warnings.append(f"{columns.negative} event(s) of negative duration count as of none")
    _move(columns, "kernels", "copies", _by_name(columns, is_copy))
    annotation = _by_name(columns, is_annotation)
    _move(columns, "operators", "annotations", annotation)
    _move(columns, "annotations", "steps", _by_name(columns, is_step))
    host = _top(document.around, "host")
    trace = Trace(
        path=path,
        operators=_operators(columns),
        annotations=_spans(columns, "annotations"),
        steps=_once(_spans(columns, "steps")),
        kernels=_kernels(columns),
        copies=_copies(columns),
        runtime=_spans(columns, "runtime"),
        device_annotations=_spans(columns, "device_annotations"),
        overheads=_spans(columns, "overheads"),
        python=_spans(columns, "python"),
        syncs=_spans(columns, "syncs"),
        memory=_memory(columns),
        flows=dict(columns.flows),
        devices=_devices(document.around),
        distributed=_mapping(_top(document.around, "distributed")),
        base_ns=_base(document.around),
        host=host if isinstance(host, str) else "",
        lanes=_lanes(columns),
        names=tuple(columns.names),
        warnings=tuple(warnings),
    )
    if not any(map(len, (trace.operators, trace.annotations, trace.steps, trace.kernels, trace.copies, trace.runtime,
                         trace.device_annotations, trace.python))):  # fmt: skip
        raise AdvisorError(
            f"{path} holds no event that torch.profiler records; record it with activities (CPU, CUDA)", BAD_TRACE
        )
    return trace


def _by_name(columns: Columns, test: Any) -> Bools:
    return np.fromiter((test(name) for name in columns.names), np.bool_, len(columns.names))


def _move(columns: Columns, source: str, target: str, chosen: Bools) -> None:
    """Moves the rows whose name is `chosen` from one table's parts to another's."""
    for number, names in enumerate(columns.parts[source]["name"]):
        rows = chosen[names]
        if rows.any():
            for column, parts in columns.parts[source].items():
                values = parts[number]
                if column in _KEPT[target]:
                    columns.parts[target][column].append(values[rows])
                parts[number] = values[~rows]


_SPAN_COLUMNS = frozenset(("start", "end", "name", "lane", "external"))
_KEPT = {
    "steps": _SPAN_COLUMNS,
    "annotations": _SPAN_COLUMNS,
    "copies": _SPAN_COLUMNS | {"correlation", "device", "stream", "bytes", "grid", "block", "occupancy"},
}


class _Table:
    """One table's columns, in order of time; of events that start together the longest first.

    Each is taken out of the parts as it is asked for: a file of 10 GB has gigabytes of columns, and nobody needs them
    twice. What the table has no column for takes no memory.
    """

    def __init__(self, columns: Columns, table: str, moment: str = "start") -> None:
        self._columns = columns
        self._table = table
        start = columns.take(table, moment, np.int64)
        end = columns.take(table, "end", np.int64)
        self._length = len(start) if start is not None else 0
        if start is None:
            start = np.empty(0, np.int64)
        self._order = _in_time(start, end) if end is not None else np.argsort(start, kind="stable")
        self.start = start[self._order]
        self.end = end[self._order] if end is not None else self.start

    def column(self, name: str, dtype: type[np.generic], default: float = -1) -> NDArray[Any]:
        values = self._columns.take(self._table, name, dtype)
        if values is None:
            return np.broadcast_to(np.asarray(default, dtype), self._length)
        ordered: NDArray[Any] = values[self._order]
        return ordered

    def spans(self) -> dict[str, NDArray[Any]]:
        """The columns of Spans."""
        return {
            "start": self.start,
            "end": self.end,
            "name": self.column("name", np.int32),
            "lane": self.column("lane", np.int32),
            "correlation": self.column("correlation", np.int64),
            "external": self.column("external", np.int64),
        }


def _in_time(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.intp]:
    """The order by start, and of those that start together the longest first."""
    order = np.argsort(start, kind="stable")  # which takes advantage of runs that are in order, of which there are many
    sorted_start = start[order]
    tied = sorted_start[1:] == sorted_start[:-1]
    if tied.any():
        among = np.flatnonzero(np.append(tied, False) | np.insert(tied, 0, False))
        rows = order[among]
        order[among] = rows[np.lexsort((-end[rows], start[rows]))]
    return order


def _spans(columns: Columns, table: str) -> Spans:
    return Spans(**_Table(columns, table).spans())


def _operators(columns: Columns) -> Operators:
    table = _Table(columns, "operators")
    return Operators(
        **table.spans(),
        sequence=table.column("sequence", np.int64),
        shapes=table.column("shapes", np.int32),
        dtypes=table.column("dtypes", np.int32),
        values=table.column("values", np.int32),
    )


def _place(columns: Columns, table: _Table, lane: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Device and stream: from the arguments, else from the lane, whose process is the device's index."""
    device = table.column("device", np.int32)
    stream = table.column("stream", np.int32)
    if len(lane) and (device < 0).any():
        of_lane = np.array([_small_int(pid) for pid, _ in columns.lanes], np.int32)
        device = np.where(device < 0, of_lane[lane], device)
    if len(lane) and (stream < 0).any():
        of_lane = np.array([_small_int(tid.removeprefix("stream ")) for _, tid in columns.lanes], np.int32)
        stream = np.where(stream < 0, of_lane[lane], stream)
    return {"device": device, "stream": stream}


def _small_int(text: str) -> int:
    value = integer(text, -1)
    return value if 0 <= value < 2**31 else -1


def _kernels(columns: Columns) -> Kernels:
    table = _Table(columns, "kernels")
    spans = table.spans()
    return Kernels(
        **spans,
        **_place(columns, table, spans["lane"]),
        grid=table.column("grid", np.int64, 0),
        block=table.column("block", np.int64, 0),
        occupancy=table.column("occupancy", np.float64, np.nan),
    )


def _copies(columns: Columns) -> Copies:
    table = _Table(columns, "copies")
    spans = table.spans()
    names = spans["name"]
    kinds, pageable = np.zeros(len(columns.names), np.int32), np.zeros(len(columns.names), np.bool_)
    for code in np.unique(names).tolist():
        pageable[code] = is_pageable(columns.names[code])
        kinds[code] = columns.name_code(copy_kind(columns.names[code]))
    return Copies(
        **spans,
        **_place(columns, table, spans["lane"]),
        bytes=table.column("bytes", np.int64, 0),
        kind=kinds[names],
        pageable=pageable[names],
    )


def _memory(columns: Columns) -> MemoryEvents:
    table = _Table(columns, "memory", "at")
    return MemoryEvents(
        at=table.start,
        bytes=table.column("bytes", np.int64, 0),
        allocated=table.column("allocated", np.int64),
        reserved=table.column("reserved", np.int64),
        device_type=table.column("device_type", np.int32),
        device=table.column("device", np.int32),
    )


def _once(steps: Spans) -> Spans:
    """Steps without repeats: of those with one name that overlap, the first (and longest) stays."""
    kept: list[int] = []
    until: dict[int, int] = {}
    for row, (name, start, end) in enumerate(
        zip(steps.name.tolist(), steps.start.tolist(), steps.end.tolist(), strict=True)
    ):
        if name in until and start < until[name]:
            continue
        until[name] = end
        kept.append(row)
    rows = np.array(kept, np.intp)
    return Spans(*(getattr(steps, column)[rows] for column in Spans.__dataclass_fields__))


def _lanes(columns: Columns) -> tuple[Lane, ...]:
    def label(kind: str, pid: str, tid: str) -> str:
        return columns.labels.get((kind, pid, tid.removeprefix("stream ")), "")

    processes = {pid: text for (kind, pid, _), text in columns.labels.items() if kind == "process_name"}
    return tuple(
        Lane(pid=pid, tid=tid, process=processes.get(pid, ""), thread=label("thread_name", pid, tid))
        for pid, tid in columns.lanes
    )


def _top(around: list[Around], field: str) -> object:
    values = (loads(getattr(part, field)) for part in around)
    return next((value for value in values if value is not None), None)


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _devices(around: list[Around]) -> tuple[dict[str, object], ...]:
    value = _top(around, "device_properties")
    return tuple(device for device in value if isinstance(device, dict)) if isinstance(value, list) else ()


def _base(around: list[Around]) -> int:
    value = _top(around, "base")
    return integer(value, 0) if isinstance(value, (int, float, str)) else 0
