"""What the making of a batch consists of: lines of the dataset, transforms, the collate function.

Looked at are a few fetches per process before the timing window: some are timed by line and transform, one is counted
(lines of the user's code that run, calls of torch). Workers append what they saw to a file in the run folder, and look
only while another file is there, which the script's own process takes away when the timing begins. A look that is going
on then ends, and so does one that takes too long; neither is written down. Nothing that fails here fails in the script.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .layout import FetchPart, Loader, Site
from .places import is_users
from .transforms import attribute, code_of, first_argument, images_in, pixels_of, transforms_of, written_at

LOOKS_FILE, LOOKING_FILE = "looks.jsonl", "looking"
# Of the fetches of one dataset in one process, from 1: the first ones load, compile and fill caches.
_TIMED, _COUNTED, _LAST = (2, 4), (3,), 4
# Seconds: a dataset whose first fetch takes longer is left alone. Under a look Python takes many times as long (3 times
# timed, 37 times counted, in a loop of short lines), so a look that takes longer than _END ends.
_LONGEST, _END = 1.0, 10.0
_OFTEN = 1 << 12  # events of the tracing after which it asks whether it should go on: some milliseconds of them
_MOST_LINES = 8  # are written down, those that take longest
_MOST_IMAGED = 60  # lines of one sample after which the pictures of its variables are looked at: not those of a loop


def look_on(run_dir: str) -> None:
    """From here on fetches are looked at, in the script's workers, too."""
    with contextlib.suppress(OSError), open(os.path.join(run_dir, LOOKING_FILE), "w", encoding="utf-8"):
        pass


def look_off(run_dir: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(os.path.join(run_dir, LOOKING_FILE))


class Looks:
    """Which fetches of this process are looked at; one object per process, or inherited by fork."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._fetched: dict[tuple[int, int], int] = {}  # (process, dataset) → fetches so far; _LAST for no more
        self.late = False  # the last fetch was looked at until after the looking was over: its time is not its own

    def fetch(self, original: Any, fetcher: Any, index: Any, loader: int) -> Any:
        """``original(fetcher, index)``, looked at where it is its turn; `loader` is -1 where it is not known."""
        self.late = False
        key = os.getpid(), id(getattr(fetcher, "dataset", None))
        number = self._fetched.get(key, 0) + 1
        if number > _LAST:
            return original(fetcher, index)
        if sys.gettrace() is not None or not self._looking():
            return original(fetcher, index)
        self._fetched[key] = number
        if number == 1:
            began = time.perf_counter()
            batch = original(fetcher, index)
            if time.perf_counter() - began > _LONGEST:
                self._fetched[key] = _LAST
            return batch
        try:
            look = _Counted(self._looking) if number in _COUNTED else _Timed(self._looking, fetcher.dataset)
        except Exception:
            return original(fetcher, index)
        collate = getattr(fetcher, "collate_fn", None)
        if callable(collate):
            fetcher.collate_fn = look.collating(collate)
        try:
            with look:
                return original(fetcher, index)
        finally:
            if callable(collate):
                fetcher.collate_fn = collate
            self.late = not self._looking()
            with contextlib.suppress(Exception):
                if look.whole and not self.late:
                    self._append(look.seen(), len(index) if isinstance(index, (list, tuple)) else 1, loader)

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


class _Traced(ABC):
    """``sys.settrace`` for the length of a fetch; what goes wrong in the tracing ends it, and nothing else.

    It ends, too, when ``looking()`` is no longer true, or :data:`_END` is over.
    """

    def __init__(self, looking: Callable[[], bool]) -> None:
        self._looking = looking
        self._events, self._until = 0, 0.0
        self.whole = True  # the tracing did not end before the fetch

    def __enter__(self) -> None:
        self._until = time.perf_counter() + _END
        sys.settrace(self._safely)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _safely(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            self.counts()
            return self.called(frame)
        except Exception:
            self.end()
            return None

    def counts(self) -> None:
        """Call at each event."""
        self._events += 1
        if not self._events % _OFTEN and (time.perf_counter() > self._until or not self._looking()):
            self.end()

    def end(self) -> None:
        """Trace no more, and take what was seen for nothing: it is a part only."""
        sys.settrace(None)
        self.whole = False

    @abstractmethod
    def called(self, frame: FrameType) -> Any:
        """A function begins: what is to trace it, if anything."""


class _Timed(_Traced):
    """Seconds by line of the outermost function of the user's, by transform that the dataset holds, in the collate."""

    def __init__(self, looking: Callable[[], bool], dataset: Any) -> None:
        super().__init__(looking)
        self._transforms = {id(each): each for each in transforms_of(dataset)}
        self._codes = {code for each in self._transforms.values() for code in [code_of(each)] if code is not None}
        self._outer: FrameType | None = None
        self._line, self._since = 0, 0.0
        self._running: dict[FrameType, tuple[int, float]] = {}
        self.lines: dict[tuple[CodeType, int], float] = {}
        self.transforms: dict[int, float] = {}  # by identity, in the order in which they first run
        self.pixels: dict[int, tuple[int, int]] = {}  # the most that each was given, and gave
        self.line_pixels: dict[tuple[CodeType, int], tuple[int, int]] = {}  # likewise
        self._images: dict[str, tuple[int, int]] = {}  # identity and pixels by variable, before the line that runs
        self._imaged = 0
        self.collate_s = self.seconds = 0.0
        self.collate: Any = None

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.seconds = time.perf_counter() - self._began

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(samples: Any) -> Any:
            sys.settrace(None)
            self.collate = collate
            began = time.perf_counter()
            try:
                return collate(samples)
            finally:
                self.collate_s += time.perf_counter() - began

        return run

    def called(self, frame: FrameType) -> Any:
        code = frame.f_code
        if code in self._codes:
            whose = self._whose(frame)
            if whose is not None:
                self.transforms.setdefault(whose, 0.0)
                self._saw(whose, pixels_of(first_argument(frame)), 0)
                self._running[frame] = whose, time.perf_counter()
                if self._outer is not None or not is_users(frame):
                    frame.f_trace_lines = False
                    return self._in_transform
        if self._outer is None and is_users(frame):
            self._images, self._imaged = images_in(frame), 0
            self._outer, self._line, self._since = frame, frame.f_lineno or 0, time.perf_counter()
            return self._in_outer
        return None

    def _whose(self, frame: FrameType) -> int | None:
        """The identity of the transform that `frame` runs."""
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if id(first) in self._transforms:
                return id(first)
        return next((key for key, each in self._transforms.items() if attribute(each, "__code__") is code), None)

    def _in_outer(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            now = time.perf_counter()
            key = frame.f_code, self._line
            if event in ("line", "return"):
                self.lines[key] = self.lines.get(key, 0.0) + now - self._since
                self._look_at_images(key, frame)
                self._line, self._since = frame.f_lineno or 0, time.perf_counter()
            if event == "return":
                self._outer = None
                self._ended(frame, now, arg)
            self.counts()
        except Exception:
            self.end()
            return None
        return self._in_outer

    def _look_at_images(self, line: tuple[CodeType, int], frame: FrameType) -> None:
        """What the line that has run made of the pictures in the function's variables."""
        if self._imaged >= _MOST_IMAGED:
            return
        self._imaged += 1
        before, self._images = self._images, images_in(frame)
        changed = [name for name, image in self._images.items() if before.get(name) != image]
        if changed and before:
            given = max(before[name][1] for name in (changed if before.keys() >= {*changed} else before))
            most = self.line_pixels.get(line, (0, 0))
            gave = max(self._images[name][1] for name in changed)
            self.line_pixels[line] = max(most[0], given), max(most[1], gave)

    def _in_transform(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            if event == "return":
                self._ended(frame, time.perf_counter(), arg)
        except Exception:
            self.end()
            return None
        return self._in_transform

    def _ended(self, frame: FrameType, now: float, result: Any) -> None:
        whose, since = self._running.pop(frame, (0, now))
        if whose:
            self.transforms[whose] = self.transforms.get(whose, 0.0) + now - since
            self._saw(whose, 0, pixels_of(result))

    def _saw(self, whose: int, given: int, gave: int) -> None:
        most = self.pixels.get(whose, (0, 0))
        self.pixels[whose] = max(most[0], given), max(most[1], gave)

    def seen(self) -> dict[str, Any]:
        lines = sorted(self.lines.items(), key=lambda each: -each[1])[:_MOST_LINES]
        parts = [
            ("line", code.co_name, code.co_filename, line, 0, *self.line_pixels.get((code, line), (0, 0)), took)
            for (code, line), took in lines
        ]
        for order, (whose, took) in enumerate(self.transforms.items()):
            pixels = self.pixels.get(whose, (0, 0))
            parts.append(("transform", *written_at(self._transforms[whose]), order, *pixels, took))
        if self.collate is not None:
            parts.append(("collate", *written_at(self.collate), 0, 0, 0, self.collate_s))
        return {"seconds": self.seconds, "parts": parts}


class _Counted(_Traced):
    """How many lines of the user's code run, and how often torch is called: for the samples, and in the collate."""

    def __init__(self, looking: Callable[[], bool]) -> None:
        super().__init__(looking)
        self.lines, self.calls, self._where = [0, 0], [0, 0], 0
        self._mode = _calls_of_torch(self)

    def __enter__(self) -> None:
        self._mode.__enter__()
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._mode.__exit__(None, None, None)

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(samples: Any) -> Any:
            self._where = 1
            return collate(samples)

        return run

    def called(self, frame: FrameType) -> Any:
        return self._count if is_users(frame) else None

    def _count(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            if event == "line":
                self.lines[self._where] += 1
                self.counts()
        except Exception:
            self.end()
            return None
        return self._count

    def counted(self) -> None:
        self.calls[self._where] += 1

    def seen(self) -> dict[str, Any]:
        return {"lines": self.lines, "calls": self.calls}


def _calls_of_torch(counted: _Counted) -> Any:
    """A mode that counts calls of torch's functions and operators on tensors, and changes none of them."""
    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") != "__get__":  # an attribute: x.shape
                counted.counted()
            return func(*args, **(kwargs or {}))

    return Calls()


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
    parts: dict[tuple[Any, ...], float] = {}
    pixels: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in timed:
        for *key, given, gave, seconds in row["parts"]:
            which = tuple(key)
            parts[which] = parts.get(which, 0.0) + seconds
            before = pixels.get(which, (0, 0))
            pixels[which] = max(given, before[0]), max(gave, before[1])
    record.looks = len(timed)
    if timed:
        record.look_s = sum(row["seconds"] for row in timed) / len(timed)
        record.parts = [
            FetchPart(
                kind,
                name,
                Site(os.path.realpath(file) if file else "", line, function=name),
                took / len(timed),
                order,
                *pixels[kind, name, file, line, order],
            )
            for (kind, name, file, line, order), took in sorted(parts.items(), key=lambda each: -each[1])
        ]
    samples = sum(row["samples"] for row in counted)
    if samples:
        record.item_lines, record.collate_lines = (sum(row["lines"][i] for row in counted) / samples for i in (0, 1))
        record.item_calls, record.collate_calls = (sum(row["calls"][i] for row in counted) / samples for i in (0, 1))
