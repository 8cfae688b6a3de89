"""Where the script is while a step takes several times as long as the others: between two epochs, say.

In the timing window a thread looks at the stack of the one that takes the steps, every few hundredths of a second and
only once a step is long: what happens in each step is the profiler's business. What it sees is put down to what is
known of that step when it ends (:data:`.timing._WEIGHT`), and to nothing where nothing is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from types import CodeType

from .layout import Pause, Site
from .places import FRAMES, is_users_code, site_at
from .timing import LONG, weightiest

_EVERY = 0.02  # seconds from one look to the next
_LEAST = 0.05  # of a step that is long
_MOST = 40  # places that are told of
_LOADING = os.path.join("torch", "utils", "data") + os.sep
_FETCHES = os.path.join("torch", "utils", "data", "_utils", "fetch.py")

# Code and its last instruction, of all frames from the inside out. No frame is kept, nor looked at for longer: another
# thread runs it, and what its variables hold is to go when it does.
_Stack = list[tuple[CodeType, int]]


class Pauses:
    """Told when the timed steps begin, when each of them ends, and when they are over."""

    def __init__(self) -> None:
        self._usual = 0.0
        self._since = 0.0
        self._looking: threading.Event | None = None  # set: look no more
        self._samples: list[_Stack] = []
        self._steps = 0
        self._found: dict[tuple[str, tuple[int, ...], bool], Pause] = {}

    def begin(self, usual_s: float) -> None:
        """The timed steps begin, in this thread; one of them takes about so long."""
        self.stop()
        self._usual, self._since = usual_s, time.perf_counter()
        self._samples, self._found, self._steps = [], {}, 0
        self._looking = threading.Event()
        arguments = self._looking, threading.get_ident(), max(_LEAST, LONG * usual_s)
        threading.Thread(target=self._look, args=arguments, name="advisor-pauses", daemon=True).start()

    def step_ended(self, now: float, seconds: float, causes: Iterable[str]) -> None:
        """A step is over that took so long, and in which these things happened besides."""
        self._since = now
        self._steps += 1
        if not self._samples:
            return
        samples, self._samples = self._samples, []
        cause, each_s = weightiest(causes), max(0.0, seconds - self._usual) / len(samples)
        for sites, loading in map(_seen, samples):
            key = cause, tuple(map(id, sites)), loading
            found = self._found.setdefault(key, Pause(cause, list(sites), loading))
            found.seconds += each_s
            if found.steps[-1:] != [self._steps]:
                found.steps.append(self._steps)

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.set()
            self._looking = None

    def end(self) -> list[Pause]:
        """What was seen, the longest first."""
        self.stop()
        return sorted(self._found.values(), key=lambda each: -each.seconds)[:_MOST]

    def _look(self, over: threading.Event, thread: int, least_s: float) -> None:
        try:
            while not over.wait(_EVERY):
                if time.perf_counter() - self._since >= least_s and (stack := _stack(thread)):
                    self._samples.append(stack)
                    del stack
        except Exception:  # what fails here does not fail in the script
            return


def _stack(thread: int) -> _Stack:
    """Where a thread is; empty where it is over."""
    frame, found = sys._current_frames().get(thread), []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def _seen(stack: _Stack) -> tuple[tuple[Site, ...], bool]:
    """The user's places from the inside out, and whether torch's loader is at work: it starts, or makes a batch."""
    sites = [site_at(code, instruction) for code, instruction in stack if is_users_code(code)]
    outer = next((at for at, (code, _) in enumerate(stack) if is_users_code(code)), len(stack))
    starts = any(_LOADING in code.co_filename for code, _ in stack[:outer])
    fetches = any(code.co_name == "fetch" and code.co_filename.endswith(_FETCHES) for code, _ in stack)
    return tuple(sites[:FRAMES]), starts or fetches
