"""What runs while a batch is made, by Python's own tracing: seconds by line and transform, lines and calls counted."""

from __future__ import annotations

import gc
import inspect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..from_lists import numbers_listed
from ..layout.loading import ALONE, LASTS
from ..places import is_users
from .tables import facts, lengths_of, library_of, of_numbers, opens_archive, row_bytes, table_of
from .transforms import attribute, code_of, collate_of, first_argument, images_in, pixels_of, transforms_of, written_at

# Seconds. Under a look Python takes many times as long (3 times timed, 37 times counted, in a loop of short lines): one
# that takes longer ends.
_END = 10.0
_OFTEN = 1 << 12  # events of the tracing after which it asks whether it should go on: some milliseconds of them
_MOST_LINES = 8  # are written down, those that take longest
_MOST_IMAGED = 60  # lines of one sample after which the pictures of its variables are looked at: not those of a loop
_LOOKED_AT, _MOST_YOUNG = 3, 5000  # objects of a method, and of the collector's youngest generation
_MOST_OBJECTS = 1024  # of a method
_MAKES = ("__init__", "__new__", "__setstate__")
_LEAST_ASKED = 0.05  # share of the fetch from which on what an object is asked is told of
_LEAST_LONGEST = 0.5  # share of the fetch from which on it is asked what the longest line calls
_NEARLY_ALL = 0.8  # share of a line that one function takes which it calls
_DEEPEST = 8  # functions below the line
# Times as long as the line took before: with more, what is seen is the tracing, not the code.
_MOST_LENGTHENED = 1.5

_VARIOUS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_NOBODY = object()

Line = tuple[CodeType, int]
"""A line of a function."""


class Traced(ABC):
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

    @abstractmethod
    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What does the same as the collate function, and tells its part of the fetch from the samples'."""

    @abstractmethod
    def seen(self) -> dict[str, Any]:
        """What was seen of a fetch that is over, for JSON."""


class Longest(NamedTuple):
    """A line that takes most of a fetch, and its seconds in one."""

    line: Line
    seconds: float


class _Asked(NamedTuple):
    """A library's function that runs, what was asked of which (with the line that asks), and since when."""

    frame: FrameType
    what: tuple[str, Line, str]
    since: float


def _nothing(frame: FrameType, event: str, arg: Any) -> None:
    """Traces nothing."""


class Timed(Traced):
    """Seconds by line of the outermost function of the user's, by transform that the dataset holds, in the collate.

    And what any line of the user's asks of pandas, of NumPy's archives, or has NumPy convolve.
    """

    def __init__(self, looking: Callable[[], bool], dataset: Any) -> None:
        super().__init__(looking)
        self._transforms = {id(each): each for each in transforms_of(dataset)}
        self._codes = {code for each in self._transforms.values() for code in [code_of(each)] if code is not None}
        self._outer: FrameType | None = None
        self._line, self._since = 0, 0.0
        self._running: dict[FrameType, tuple[int, float]] = {}
        self.lines: dict[Line, float] = {}
        self.transforms: dict[int, float] = {}  # by identity, in the order in which they first run
        self.pixels: dict[int, tuple[int, int]] = {}  # the most that each was given, and gave
        self.line_pixels: dict[Line, tuple[int, int]] = {}  # likewise
        self.calling: set[Line] = set()  # lines that call another function of the user's
        self._images: dict[str, tuple[int, int]] = {}  # identity and pixels by variable, before the line that runs
        self._imaged = 0
        self.asked: dict[tuple[str, Line, str], float] = {}  # by the library, the line that asks, the key it asks for
        self.lengths: dict[tuple[str, Line, str], tuple[int, int]] = {}  # likewise: the longest signals convolved there
        self.tables: dict[int, Any] = {}  # by identity, of pandas: what was asked
        self._archives: dict[int, Any] = {}
        self.row_bytes: dict[int, float] = {}  # by identity, of archives that were open before: see there
        self._opened: set[int] = set()  # identities of archives that were not
        self._running_library: _Asked | None = None
        self._asked_before: set[tuple[CodeType, Line]] = set()  # functions of pandas that were looked at
        self.collate_s = self.seconds = 0.0
        self.collate: Any = None
        self.listed = 0  # numbers of the first sample that lists hold
        self._samples = 0  # that the user's function has begun to make
        self._lasting: dict[CodeType, Any] = {}  # the object of a method without arguments …
        self._askers: dict[CodeType, set[int]] = {}  # … and the samples that have asked it
        self._asks: dict[FrameType, float] = {}  # of them those that run, and since when
        self.lasting: dict[CodeType, float] = {}  # seconds of those whose object is the same for each sample
        # Of all methods without arguments, of whatever object: calls, seconds, the objects by sample; those that run,
        # and since when; and those that are asked of objects which this fetch has made.
        self.asked_of: dict[CodeType, list[float]] = {}
        self._objects: dict[CodeType, dict[tuple[int, int], Any]] = {}
        self._born: set[int] = set()  # identities of objects that this fetch has made
        self._many: set[CodeType] = set()  # methods of more objects than are kept
        self._running_asked: dict[FrameType, float] = {}
        self._passing: set[CodeType] = set()
        self._asking: set[CodeType] = set()  # of them those that call another function of the user's

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.seconds = time.perf_counter() - self._began

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(samples: Any) -> Any:
            sys.settrace(None)
            self.collate = collate_of(collate)
            self.listed = numbers_listed(samples[0]) if isinstance(samples, list) and samples else 0
            began = time.perf_counter()
            try:
                return collate(samples)
            finally:
                self.collate_s += time.perf_counter() - began

        return run

    def called(self, frame: FrameType) -> Any:
        code = frame.f_code
        now = time.perf_counter()
        if code.co_name in _MAKES and code.co_argcount:
            self._born.add(id(frame.f_locals.get(code.co_varnames[0])))
        if self._outer is not None and self._running_library is None and (library := library_of(frame)):
            return self._is_asked(library, frame, now)
        if opened := opens_archive(frame):
            self._opened.add(opened)
        asks = False
        if self._outer is not None and is_users(frame):
            self.calling.add((self._outer.f_code, self._line))
            self._asking |= self._asked_now()
            if _asks_alone(code):
                asks = self._is_lasting(frame)
                self._is_asked_of(frame)
        if code in self._codes:
            whose = self._whose(frame)
            if whose is not None:
                self.transforms.setdefault(whose, 0.0)
                self._saw(whose, pixels_of(first_argument(frame)), 0)
                self._running[frame] = whose, time.perf_counter()
                if self._outer is not None or not is_users(frame):
                    frame.f_trace_lines = False
                    return self._in_transform
        if frame in self._running_asked:
            frame.f_trace_lines = False
            self._running_asked[frame] = time.perf_counter()
            if asks:
                self._asks[frame] = self._running_asked[frame]
            return self._in_method
        if self._outer is None and is_users(frame):
            self._samples += 1
            self._images, self._imaged = images_in(frame), 0
            self._outer, self._line, self._since = frame, frame.f_lineno or 0, time.perf_counter()
            return self._in_outer
        return None

    def _is_asked(self, library: str, frame: FrameType, now: float) -> Any:
        """A function of a library's begins that the user's code calls."""
        caller = frame.f_back
        if caller is None or not is_users(caller):
            return None
        line = caller.f_code, caller.f_lineno or 0
        key = ""
        if library == "npz":
            if id(frame.f_locals.get("self")) in self._opened:  # it is of one sample alone
                return None
            key = str(frame.f_locals.get("key"))
        elif library == "convolve":
            key = frame.f_code.co_name
            what = library, line, key
            self.lengths[what] = max(lengths_of(frame), self.lengths.get(what, (0, 0)))
        elif (frame.f_code, line) not in self._asked_before:
            self._asked_before.add((frame.f_code, line))
            table = table_of(frame)
            if table is not None:
                self.tables[id(table)] = table
        self._running_library = _Asked(frame, (library, line, key), now)
        frame.f_trace_lines = False
        sys.settrace(_nothing)  # the functions within it, of which there are many, are not to take longer by us
        return self._in_library

    def _in_library(self, frame: FrameType, event: str, arg: Any) -> Any:
        asked = self._running_library
        if event != "return" or asked is None or asked.frame is not frame:
            return self._in_library
        try:
            self._running_library = None
            sys.settrace(self._safely)
            self.counts()
            self.asked[asked.what] = self.asked.get(asked.what, 0.0) + time.perf_counter() - asked.since
            archive = frame.f_locals.get("self")
            if asked.what[0] == "npz" and id(archive) not in self.row_bytes:
                self.row_bytes[id(archive)] = row_bytes(archive, arg)
                self._archives[id(archive)] = archive
        except Exception:
            self.end()
        return None

    def _is_lasting(self, frame: FrameType) -> bool:
        """Whether it is a method that is told nothing, or a property, of what there is one of for all samples."""
        code = frame.f_code
        if len(self._asks) > 0:
            return False
        owner = frame.f_locals.get(code.co_varnames[0])
        known = self._lasting.setdefault(code, owner)
        self._askers.setdefault(code, set()).add(self._samples)
        if known is not owner:
            self.lasting.pop(code, None)
            self._lasting[code] = _NOBODY
        return known is owner

    def _is_asked_of(self, frame: FrameType) -> None:
        """A method that is told nothing is asked of some object, while a sample is made."""
        code = frame.f_code
        if code in self._asked_now():
            return  # by itself
        owner = frame.f_locals.get(code.co_varnames[0])
        self.asked_of.setdefault(code, [0.0, 0.0])
        objects = self._objects.setdefault(code, {})
        self._running_asked[frame] = 0.0
        if len(objects) >= _MOST_OBJECTS:
            self._many.add(code)
            return
        objects[self._samples, id(owner)] = owner  # kept, or another one has its identity next
        if code in self._passing:
            return
        if id(owner) in self._born or (len(objects) <= _LOOKED_AT and _is_young(owner)):
            self._passing.add(code)

    def _asked_now(self) -> set[CodeType]:
        return {each.f_code for each in self._running_asked}

    def _in_method(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            if event == "return":
                now, code = time.perf_counter(), frame.f_code
                asked = self.asked_of[code]
                asked[0] += 1
                asked[1] += now - self._running_asked.pop(frame)
                if frame in self._asks:
                    took = now - self._asks.pop(frame)
                    if self._lasting[code] is not _NOBODY:
                        self.lasting[code] = self.lasting.get(code, 0.0) + took
        except Exception:
            self.end()
            return None
        return self._in_method

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

    def _look_at_images(self, line: Line, frame: FrameType) -> None:
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

    def longest(self) -> Longest | None:
        """The line that takes most of the fetch, and calls another function of the user's; None without one."""
        line, took = max(self.lines.items(), key=lambda each: each[1], default=(None, 0.0))
        return Longest(line, took) if line in self.calling and took >= _LEAST_LONGEST * self.seconds else None

    def seen(self) -> dict[str, Any]:
        parts = [
            ("line", code.co_name, code.co_filename, line, 0, *self.line_pixels.get((code, line), (0, 0)), took)
            for (code, line), took in _longest_first(self.lines)
        ]
        for order, (whose, took) in enumerate(self.transforms.items()):
            pixels = self.pixels.get(whose, (0, 0))
            parts.append(("transform", *written_at(self._transforms[whose]), order, *pixels, took))
        for (library, (code, line), key), took in sorted(self.asked.items(), key=lambda each: -each[1])[:_MOST_LINES]:
            lengths = self.lengths.get((library, (code, line), key), (0, 0))
            parts.append((library, key or code.co_name, code.co_filename, line, 0, *lengths, took))
        for code, took in sorted(self.lasting.items(), key=lambda each: -each[1])[:_MOST_LINES]:
            if len(self._askers[code]) > max(1, self._samples // 2):  # not what is made anew now and then
                parts.append(("lasting", code.co_name, code.co_filename, code.co_firstlineno, 0, 0, 0, took))
        for code, (calls, took) in sorted(self.asked_of.items(), key=lambda each: -each[1][1])[:_MOST_LINES]:
            if took >= _LEAST_ASKED * self.seconds and code not in self._many:
                which = LASTS * (code not in self._passing) + ALONE * (code not in self._asking)
                place = code.co_name, code.co_filename, code.co_firstlineno
                parts.append(("object", *place, which, int(calls), len(self._objects[code]), took))
        if self.collate is not None:
            parts.append(("collate", *written_at(self.collate), 0, 0, 0, self.collate_s))
        frames = sorted(set[str]().union(*map(facts, self.tables.values())))
        sizes = [each for key, each in self.row_bytes.items() if each and of_numbers(self._archives[key])]
        seen = {"seconds": self.seconds, "parts": parts, "frames": frames, "row_bytes": sizes}
        return {**seen, "listed": self.listed}


@dataclass
class _Running:
    """A function that runs, the line of it that does, and since when either does."""

    frame: FrameType
    line: int
    since: float
    began: float


class Inside(Traced):
    """Seconds by line in the functions of the user's that one line calls, and in those that these call."""

    def __init__(self, looking: Callable[[], bool], longest: Longest) -> None:
        super().__init__(looking)
        self._longest = longest
        self._stack: list[_Running] = []  # the function with the line first
        self.lines: dict[Line, float] = {}  # what they call included
        self.calls: dict[Line, dict[CodeType, float]] = {}  # by line: seconds of each function that it calls

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(samples: Any) -> Any:
            sys.settrace(None)
            return collate(samples)

        return run

    def called(self, frame: FrameType) -> Any:
        if not self._stack:
            inside = frame.f_code is self._longest.line[0]
        elif len(self._stack) == 1 and self._stack[0].line != self._longest.line[1]:
            inside = False
        else:
            inside = len(self._stack) <= _DEEPEST and is_users(frame)
        if not inside:
            return None
        now = time.perf_counter()
        self._stack.append(_Running(frame, frame.f_lineno or 0, now, now))
        return self._in_function

    def _in_function(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            now = time.perf_counter()
            running = self._stack[-1]
            if running.frame is not frame:  # one that ended unseen
                raise LookupError
            if event in ("line", "return"):
                key = frame.f_code, running.line
                self.lines[key] = self.lines.get(key, 0.0) + now - running.since
                running.line, running.since = frame.f_lineno or 0, time.perf_counter()
            if event == "return":
                self._stack.pop()
                if self._stack:
                    caller = self._stack[-1]
                    called = self.calls.setdefault((caller.frame.f_code, caller.line), {})
                    called[frame.f_code] = called.get(frame.f_code, 0.0) + now - running.began
            self.counts()
        except Exception:
            self.end()
            return None
        return self._in_function

    def seen(self) -> dict[str, Any]:
        """The lines of the innermost function that takes nearly all of the line; none where the tracing takes it.

        Their seconds are what they would be in a fetch that is not looked into so closely.
        """
        line, seconds = self._longest
        took = self.lines.get(line, 0.0)
        if took > _MOST_LENGTHENED * seconds:
            return {"inside": []}
        own: dict[Line, float] = {}
        followed = {line[0]}
        while called := self.calls.get(line):
            function = max(called, key=called.__getitem__)
            if function in followed or called[function] < _NEARLY_ALL * took:
                break
            followed.add(function)
            own = {key: each for key, each in self.lines.items() if key[0] is function}
            line = max(own, key=own.__getitem__)
        return {
            "inside": [
                ("inside", code.co_name, code.co_filename, line, 0, 0, 0, each * seconds / took)
                for (code, line), each in _longest_first(own)
            ]
        }


def _is_young(owner: Any) -> bool:
    """Whether an object was made a moment ago, by the collector's youngest generation; True where that is too large, or
    does not know it.
    """
    if gc.get_count()[0] > _MOST_YOUNG or not gc.is_tracked(owner):
        return True
    return any(each is owner for each in gc.get_objects(generation=0))


def _asks_alone(code: CodeType) -> bool:
    """Whether it is a method, or a property, that is told nothing but its object."""
    return code.co_argcount == 1 and not code.co_kwonlyargcount and not code.co_flags & _VARIOUS


def _longest_first(lines: dict[Line, float]) -> list[tuple[Line, float]]:
    return sorted(lines.items(), key=lambda each: -each[1])[:_MOST_LINES]


class Counted(Traced):
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


def _calls_of_torch(counted: Counted) -> Any:
    """A mode that counts calls of torch's functions and operators on tensors, and changes none of them."""
    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") != "__get__":  # an attribute: x.shape
                counted.counted()
            return func(*args, **(kwargs or {}))

    return Calls()
