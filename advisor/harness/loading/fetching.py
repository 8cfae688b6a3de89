"""What the making of a batch consists of: lines of the dataset, transforms, the collate function.

Looked at are a few fetches per process before the timing window: some are timed by line and transform, one is counted
(lines of the user's code that run, calls of torch), one is timed inside the line that takes longest. Where torch has
several threads, as the script's own process has and a worker has not, one or two are made on a single one. Workers
append what they saw to a file in the run folder, and look only while another file is there, which the script's own
process takes away when the timing begins. A tracing that is going on then ends, and so does one that takes too long;
neither is written down. Nothing that fails here fails in the script.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..layout import FetchPart, Loader, Site
from ..timing import compiled_frames
from .drawing import Drawing, may_look
from .reading import Reading
from .tracing import Counted, Inside, Longest, Timed, Traced

LOOKS_FILE, LOOKING_FILE = "looks.jsonl", "looking"
# Of the fetches of one dataset in one process: the first ones load, compile and fill caches. Where there are threads,
# one is made with a single one early: a script that takes long for each has few of them before it is timed.
_ORDER = ("first", "timed", "counted", "timed", "inside")
_ORDER_WITH_THREADS = ("first", "timed", "single", "counted", "timed", "inside", "single")
# Seconds that a fetch on one thread may take at worst, and from which on one of them has to do.
_MOST_SINGLE, _LONG_SINGLE = 8.0, 1.0
_LONGEST = 1.0  # seconds: the lines of a dataset whose first fetch takes longer are not traced


def look_on(run_dir: str) -> None:
    """From here on fetches are looked at, in the script's workers, too."""
    with contextlib.suppress(OSError), open(os.path.join(run_dir, LOOKING_FILE), "w", encoding="utf-8"):
        pass


def look_off(run_dir: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(os.path.join(run_dir, LOOKING_FILE))


class Looks:
    """Which fetches of this process are looked at; one object per process, or inherited by fork."""

    def __init__(self, torch: ModuleType, run_dir: str) -> None:
        self._torch: Any = torch
        self._run_dir = run_dir
        self._left: dict[tuple[int, int], list[str]] = {}  # (process, dataset) → looks to come
        self._whole: dict[tuple[int, int], int] = {}  # likewise → samples of the first batch
        self._longest: dict[tuple[int, int], Longest | None] = {}  # likewise → the line to look into
        self._asked: dict[tuple[int, int], int] = {}  # likewise → fetches that were asked whether they draw
        self.late = False  # the last fetch was looked at until after the looking was over: its time is not its own

    def fetch(self, original: Any, fetcher: Any, index: Any, loader: int) -> Any:
        """``original(fetcher, index)``, looked at where it is its turn; `loader` is -1 where it is not known."""
        key = os.getpid(), id(getattr(fetcher, "dataset", None))
        drawing = self._drawing(key, fetcher)
        batch = self._fetch(original, fetcher, index, loader, key)
        if drawing is not None:
            with contextlib.suppress(Exception):
                self._append({"drew": drawing.drew(), "own": drawing.drew_own()}, _samples(index), loader)
        return batch

    def _drawing(self, key: tuple[int, int], fetcher: Any) -> Drawing | None:
        """What asks the fetch to come whether it draws, where it is its turn."""
        asked = self._asked.get(key, 0)
        if not may_look(asked) or not self._looking():
            return None
        self._asked[key] = asked + 1
        try:
            return Drawing(self._torch, fetcher)
        except Exception:  # what a dataset holds may be anything
            self._asked[key] = sys.maxsize
            return None

    def _fetch(self, original: Any, fetcher: Any, index: Any, loader: int, key: tuple[int, int]) -> Any:
        self.late = False
        left = self._left.get(key)
        if left is not None and not left:
            return original(fetcher, index)
        if sys.gettrace() is not None or not self._looking():
            return original(fetcher, index)
        if left is None:
            left = self._left[key] = list(_ORDER_WITH_THREADS if self._torch.get_num_threads() > 1 else _ORDER)
        kind = left.pop(0)
        if kind == "first":
            began = time.perf_counter()
            batch = original(fetcher, index)
            self._plan(left, time.perf_counter() - began)
            self._whole[key] = _samples(index)
            return batch
        if kind == "single":
            alike = _samples(index) == self._whole.get(key) and not compiled_frames()
            single = alike and threading.current_thread() is threading.main_thread()
            return self._single(original, fetcher, index, loader) if single else original(fetcher, index)
        reading = Reading()
        try:
            look = self._look(kind, key, fetcher.dataset)
        except Exception:
            look = None
        if look is None:
            return original(fetcher, index)
        collate = getattr(fetcher, "collate_fn", None)
        if callable(collate):
            fetcher.collate_fn = look.collating(collate)
        try:
            with look, reading:
                return original(fetcher, index)
        finally:
            if callable(collate):
                fetcher.collate_fn = collate
            self.late = not self._looking()
            with contextlib.suppress(Exception):
                if look.whole and not self.late:
                    if isinstance(look, Timed):
                        self._longest[key] = look.longest()
                    self._append({**look.seen(), **reading.seen()}, _samples(index), loader)

    def _plan(self, left: list[str], seconds: float) -> None:
        """What is left out of the looks to come after a first fetch that took so long."""
        if seconds > _LONGEST:
            left[:] = [each for each in left if each == "single"]
        # On one thread it may take as many times as long as there are threads.
        worst = seconds * self._torch.get_num_threads()
        keep = 0 if worst > _MOST_SINGLE else 1 if worst > _LONG_SINGLE else len(left)
        for number in [at for at, each in enumerate(left) if each == "single"][keep:][::-1]:
            del left[number]

    def _single(self, original: Any, fetcher: Any, index: Any, loader: int) -> Any:
        """The fetch as a worker makes it, whose operators run on one thread.

        What several threads took of the processor says little of that: an idle thread of OpenMP's spins. Of batches of
        spectrograms on 16 cores 15 s of processor time were counted per second, which one thread computes in less.
        """
        threads = self._torch.get_num_threads()
        set_threads = inspect.unwrap(self._torch.set_num_threads)  # the script's own calls are written down
        set_threads(1)
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            batch = original(fetcher, index)
        finally:
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            if self._torch.get_num_threads() == 1:  # else the dataset has set them itself
                set_threads(threads)
        self.late = not self._looking()
        if not self.late and not getattr(fetcher, "ended", False):  # a stream's last batch may be a part of one
            self._append({"single": (seconds, cpu)}, _samples(index), loader)
        return batch

    def _look(self, kind: str, key: tuple[int, int], dataset: Any) -> Traced | None:
        """What a fetch is looked at with; None where there is nothing to be seen in it."""
        if kind == "counted":
            return Counted(self._looking)
        if kind == "timed":
            return Timed(self._looking, dataset)
        longest = self._longest.get(key)
        return Inside(self._looking, longest) if longest is not None else None

    def _looking(self) -> bool:
        return os.path.exists(os.path.join(self._run_dir, LOOKING_FILE))

    def _append(self, seen: dict[str, Any], samples: int, loader: int) -> None:
        """A line of the file: one appending write is whole even when several processes write at once."""
        line = json.dumps({"pid": os.getpid(), "loader": loader, "samples": samples, **seen}) + "\n"
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = os.open(os.path.join(self._run_dir, LOOKS_FILE), flags, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)


def _samples(index: Any) -> int:
    return len(index) if isinstance(index, (list, tuple)) else 1


def read_looks(run_dir: str, records: list[Loader], loader_of: Callable[[int], int | None]) -> None:
    """What all processes saw into the records, as means; `loader_of` knows the loader of a worker's pid."""
    try:
        with open(os.path.join(run_dir, LOOKS_FILE), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]
    except (OSError, ValueError):
        return
    by_loader: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        index = row["loader"] if row["loader"] >= 0 else loader_of(row["pid"])
        if index is not None and 0 <= index < len(records):
            by_loader.setdefault(index, []).append(row)
    for index, seen in by_loader.items():
        _into(records[index], seen)


def _into(record: Loader, rows: list[dict[str, Any]]) -> None:
    timed = [row for row in rows if "parts" in row]
    counted = [row for row in rows if "calls" in row]
    inside = [row["inside"] for row in rows if row.get("inside")]
    single = [row["single"] for row in rows if "single" in row]
    if drew := [row["drew"] for row in rows if "drew" in row]:
        record.draws = any(drew)
        record.draws_own = any(row["own"] for row in rows if "drew" in row)
    if single:
        record.single_s = sum(seconds for seconds, _ in single) / len(single)
        record.single_cpu_s = min(cpu for _, cpu in single)  # threads spin on for a while at first
    record.looks = len(timed)
    if timed:
        record.look_s = sum(row["seconds"] for row in timed) / len(timed)
        record.frames = sorted({each for row in timed for each in row.get("frames", ())})
        if sizes := [each for row in timed for each in row.get("row_bytes", ())]:
            record.archive_row_bytes = sum(sizes) / len(sizes)
        record.listed = max(row.get("listed", 0) for row in timed)
        # What is inside of a line takes no longer than the line: it comes after them all.
        record.parts = [*_mean([row["parts"] for row in timed]), *_mean(inside)]
    if reading := [row for row in (*timed, *counted) if row.get("read") is not None]:
        names = ("files", "opens", "read")
        record.files_read, record.file_opens, record.file_bytes = (
            sum(row[name] for row in reading) / len(reading) for name in names
        )
    samples = sum(row["samples"] for row in counted)
    if samples:
        record.item_lines, record.collate_lines = (sum(row["lines"][i] for row in counted) / samples for i in (0, 1))
        record.item_calls, record.collate_calls = (sum(row["calls"][i] for row in counted) / samples for i in (0, 1))


def _mean(fetches: list[list[tuple[Any, ...]]]) -> list[FetchPart]:
    """The parts of several fetches, with their mean seconds and their most pixels; the longest first."""
    took: dict[tuple[Any, ...], float] = {}
    pixels: dict[tuple[Any, ...], tuple[int, int]] = {}
    for *key, given, gave, seconds in (part for parts in fetches for part in parts):
        which = tuple(key)
        took[which] = took.get(which, 0.0) + seconds
        before = pixels.get(which, (0, 0))
        pixels[which] = max(given, before[0]), max(gave, before[1])
    return [
        FetchPart(
            kind,
            name,
            Site(os.path.realpath(file) if file else "", line, function=name),
            seconds / len(fetches),
            order,
            *pixels[kind, name, file, line, order],
        )
        for (kind, name, file, line, order), seconds in sorted(took.items(), key=lambda each: -each[1])
    ]
