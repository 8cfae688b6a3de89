"""The lanes of a picture: which events of a step go where, at which depth, in which colour."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.harness import layout
from advisor.report import parts
from advisor.trace.tables import Spans, Trace

# Deeper nesting says little about a step and takes the height that the other lanes need.
DEEPEST_ROW = 7
MOST_THREADS = 6
MOST_STREAMS = 8

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LOADER = re.compile(r"^(advisor\.fetch|enumerate\(DataLoader\))")
_BACKWARD = re.compile(
    r"^(autograd::engine::evaluate_function|" + re.escape(layout.BACKWARD_RANGE) + r"|.*Backward\d*$)"
)
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)")
_COLLECTIVE = re.compile(r"nccl|rccl|c10d::|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)
_SYNC = re.compile(r"Synchronize|^Memcpy$|(cuda|hip)Memcpy$")
_LAUNCH = re.compile(r"Launch", re.IGNORECASE)
_COPY = re.compile(r"^(cuda|hip)?Mem(cpy|set)|^aten::(to|_to_copy|copy_)$", re.IGNORECASE)


@dataclass(frozen=True)
class Boxes:
    """Events of one lane, clipped to the step, before merging; sorted by row, then by start."""

    name: str
    start: Ints
    end: Ints
    label: Ints  # codes into Trace.names
    family: Ints
    row: Ints


class Painter:
    """Turns the trace's tables into lanes for one window; remembers what found no room."""

    def __init__(self, trace: Trace, begin: int, end: int) -> None:
        self.trace, self.begin, self.end = trace, begin, end
        self.families: list[str] = []
        self.left_out: list[str] = []
        self._extra: list[str] = []  # names that are not the trace's: codes from len(trace.names) on
        self._family_of: dict[int, int | None] = {}
        self._steppers = set(trace.steps.lane.tolist())

    def text(self, code: int) -> str:
        known = len(self.trace.names)
        return self._extra[code - known] if code >= known else self.trace.name(code)

    def loader(self) -> list[Boxes]:
        found = []
        for table in (self.trace.annotations, self.trace.operators):
            rows = self._within(table)
            rows = rows[[bool(_LOADER.match(self.trace.name(int(code)))) for code in table.name[rows]]]
            found.append((table.start[rows], table.end[rows], table.name[rows].astype(np.int64)))
        start, end, label = (np.concatenate(column) for column in zip(*found, strict=True))
        return [self._packed("loader", start, end, label, np.full(len(start), self._family("loader")))]

    def threads(self) -> list[Boxes]:
        """Operators, annotations and runtime calls, nested by depth; a lane for each thread, busiest first."""
        tables = [self.trace.annotations, self.trace.operators, self.trace.runtime]
        rows = [self._within(table) for table in tables]
        start = np.concatenate([table.start[row] for table, row in zip(tables, rows, strict=True)])
        end = np.concatenate([table.end[row] for table, row in zip(tables, rows, strict=True)])
        label = np.concatenate([table.name[row] for table, row in zip(tables, rows, strict=True)]).astype(np.int64)
        lane = np.concatenate([table.lane[row] for table, row in zip(tables, rows, strict=True)])
        threads = sorted(set(lane.tolist()), key=lambda code: self._importance(code, lane, start, end))
        if len(threads) > MOST_THREADS:
            self.left_out.append(f"{len(threads) - MOST_THREADS} more CPU threads")
        lanes = []
        for code in threads[:MOST_THREADS]:
            mine = lane == code
            name, family = self._thread(code, label[mine])
            lanes.append(self._nested(name, family, start[mine], end[mine], label[mine]))
        return lanes

    def idle(self, gaps: tuple[tuple[int, int, str], ...]) -> list[Boxes]:
        inside = [gap for gap in gaps if gap[1] > self.begin and gap[0] < self.end]
        if not inside:
            return []
        start = np.array([gap[0] for gap in inside], dtype=np.int64)
        end = np.array([gap[1] for gap in inside], dtype=np.int64)
        classes = [parts.part(gap[2]) for gap in inside]
        label = np.array([self._code(part.label) for part in classes], dtype=np.int64)
        family = np.array([self._family(part.family) for part in classes], dtype=np.int64)
        return [self._packed("device idle", start, end, label, family)]

    def copies(self) -> list[Boxes]:
        table = self.trace.copies
        rows = self._within(table)
        label = table.name[rows].astype(np.int64)
        family = np.full(len(rows), self._family("copy"))
        return [self._packed("copies", table.start[rows], table.end[rows], label, family)]

    def streams(self) -> list[Boxes]:
        table = self.trace.kernels
        rows = self._within(table)
        where = list(zip(table.device[rows].tolist(), table.stream[rows].tolist(), strict=True))
        keys = sorted(set(where), key=lambda key: (key[0], -where.count(key)) if len(where) < 5000 else key)
        if len(keys) > MOST_STREAMS:
            self.left_out.append(f"{len(keys) - MOST_STREAMS} more streams")
        several = len({device for device, _ in keys}) > 1
        lanes = []
        for device, stream in keys[:MOST_STREAMS]:
            mine = rows[(table.device[rows] == device) & (table.stream[rows] == stream)]
            label = table.name[mine].astype(np.int64)
            family = np.array([self._kernel_family(int(code)) for code in label], dtype=np.int64)
            name = f"stream {stream}" if stream >= 0 else "kernels"
            if several:
                name = f"GPU {device} {name}"
            lanes.append(self._packed(name, table.start[mine], table.end[mine], label, family))
        return lanes

    def _within(self, table: Spans) -> NDArray[np.intp]:
        # Zero-length kernels are real and are kept: they are drawn as hairlines.
        return np.flatnonzero((table.end >= self.begin) & (table.start < self.end))

    def _packed(self, name: str, start: Ints, end: Ints, label: Ints, family: NDArray[np.int64]) -> Boxes:
        """Boxes that overlap in time go to further rows."""
        order = np.argsort(start, kind="stable")
        start, end, label, family = start[order], end[order], label[order], family[order]
        row = np.zeros(len(start), dtype=np.int64)
        if len(start) > 1 and (start[1:] < np.maximum.accumulate(end)[:-1]).any():
            free: list[int] = []
            for index, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
                chosen = next((at for at, until in enumerate(free) if until <= begins), len(free))
                if chosen == len(free):
                    free.append(ends)
                free[chosen] = ends
                row[index] = chosen
        keep = row <= DEEPEST_ROW
        return self._boxes(name, start, end, label, family, row, keep)

    def _nested(self, name: str, plain_family: str, start: Ints, end: Ints, label: Ints) -> Boxes:
        """Events of one thread: each below the one that it runs in, and of its family unless it has its own."""
        order = np.lexsort((-end, start))
        start, end, label = start[order], end[order], label[order]
        row = np.zeros(len(start), dtype=np.int64)
        family = np.zeros(len(start), dtype=np.int64)
        plain = self._family(plain_family)
        open_until: list[tuple[int, int, int]] = []  # (end, family, row below) of what encloses the current event
        loads = np.array([bool(_LOADER.match(self.trace.name(int(code)))) for code in label], dtype=bool)
        for index, (begins, ends, code) in enumerate(zip(start.tolist(), end.tolist(), label.tolist(), strict=True)):
            while open_until and open_until[-1][0] <= begins:
                open_until.pop()
            _, inherited, depth = open_until[-1] if open_until else (0, plain, 0)
            own = self._host_family(code)
            row[index], family[index] = depth, inherited if own is None else own
            # A loader's range is drawn in a lane of its own: here it takes no row.
            open_until.append((ends, int(family[index]), depth if loads[index] else depth + 1))
        keep = (row <= DEEPEST_ROW) & ~loads
        hidden = int((row > DEEPEST_ROW).sum())
        if hidden:
            self.left_out.append(f"{hidden:,} events nested deeper than {DEEPEST_ROW + 1} levels")
        return self._boxes(name, start, end, label, family, row, keep)

    def _boxes(self, name: str, start: Ints, end: Ints, label: Ints, family: Ints, row: Ints, keep: Bools) -> Boxes:
        order = np.flatnonzero(keep)[np.lexsort((start[keep], row[keep]))]
        start, end = (np.clip(column[order], self.begin, self.end) for column in (start, end))
        return Boxes(name, start, end, label[order], family[order], row[order])

    def _importance(self, code: int, lane: NDArray[np.int32], start: Ints, end: Ints) -> tuple[bool, int]:
        return code not in self._steppers, -int((end - start)[lane == code].sum())

    def _thread(self, code: int, label: Ints) -> tuple[str, str]:
        """(what the thread is for, the family of what runs there): files name every thread after the process."""
        if code in self._steppers:
            return "main thread", "host"
        if any(_BACKWARD.match(self.trace.name(name)) for name in set(label.tolist())):
            return "autograd thread", "backward"
        return f"thread {self.trace.lanes[code].tid}", "host"

    def _host_family(self, code: int) -> int | None:
        if code not in self._family_of:
            name = self.trace.name(code)
            chosen = None
            for pattern, family in (
                (_LOADER, "loader"),
                (_OPTIMIZER, "optimizer"),
                (_BACKWARD, "backward"),
                (_COLLECTIVE, "collective"),
                (_SYNC, "sync"),
                (_LAUNCH, "launch"),
                (_COPY, "copy"),
            ):
                if pattern.search(name):
                    chosen = self._family(family)
                    break
            if name == layout.FORWARD_RANGE:
                chosen = self._family("forward")
            self._family_of[code] = chosen
        return self._family_of[code]

    def _kernel_family(self, code: int) -> int:
        return self._family("collective" if _COLLECTIVE.search(self.trace.name(code)) else "kernel")

    def _family(self, name: str) -> int:
        if name not in self.families:
            self.families.append(name)
        return self.families.index(name)

    def _code(self, text: str) -> int:
        if text not in self._extra:
            self._extra.append(text)
        return len(self.trace.names) + self._extra.index(text)
