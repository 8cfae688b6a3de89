"""The threads of NumPy's OpenBLAS: how many there are, and what CPU time they take.

A thread of OpenBLAS that has nothing left to do does not sleep at once. It looks for the next product again and again,
for 2**28 cycles in NumPy's build (``thread_timeout`` of OpenBLAS's ``blas_server.c``), a tenth of a second, on a core
that the operators of torch may want. No clock of the process tells one from the other; the clock of each thread does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from types import ModuleType

# What names of its functions begin and end with: NumPy's wheels have a build of their own, with 64-bit integers.
_PREFIXES, _SUFFIXES = ("scipy_", ""), ("64_", "_64_", "")
_LOOKS = 100  # for threads of a process that was forked: what has made no product by then makes none
_PTHREADS = 1  # of openblas_get_parallel: threads of its own; 0 none, 2 those of OpenMP


class OpenBlas:
    """Of this process, or of one forked from it that computes on one thread otherwise, as a loader's workers do.

    Linux only; elsewhere no threads are known.
    """

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._affixes = "", ""
        self._pthreads = False  # whether it starts threads of its own
        self._clocks: list[int] = []  # one per thread that it started; see `_clock`
        self._others: set[int] = set()  # threads of a forked process before its first product: torch starts some
        self._looked = 0  # how often they were looked for
        self._sum = 0.0  # of theirs, when they were last asked
        self._pid = os.getpid()

    def numpy_loaded(self, numpy: ModuleType) -> None:
        """To be called when NumPy has just been imported: its threads are the ones that Python did not start."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._find(os.path.dirname(numpy.__file__ or ""))

    @property
    def threads(self) -> int | None:
        """Those that its products run on, the calling one among them; None where no OpenBLAS was found."""
        return self._call("get_num_threads") if self._library is not None else None

    def cpu_s(self) -> float:
        """CPU seconds that the threads which it started have taken until now; 0.0 where they are not known."""
        if not self._pthreads:
            return 0.0
        try:
            if os.getpid() != self._pid:  # where they are started with the first product
                self._pid, self._others, self._clocks, self._looked, self._sum = os.getpid(), _threads(), [], 0, 0.0
            elif not self._clocks and self._looked < _LOOKS:
                self._know_threads()
            self._sum = max(self._sum, sum(map(time.clock_gettime, self._clocks)))
        except Exception:
            # Before a process is forked OpenBLAS ends its threads. Those of later products are not told from torch's.
            self._clocks, self._looked = [], _LOOKS
        return self._sum

    def _find(self, package: str) -> None:
        for path in _mapped(package):
            library = ctypes.CDLL(path)  # it is there already, and stays
            for prefix in _PREFIXES:
                for suffix in _SUFFIXES:
                    if hasattr(library, f"{prefix}openblas_get_num_threads{suffix}"):
                        self._library, self._affixes = library, (prefix, suffix)
        self._looked = _LOOKS  # later torch has threads, too, which are not told apart
        self._pthreads = self._library is not None and self._call("get_parallel") == _PTHREADS
        if self._pthreads:
            self._know_threads()

    def _know_threads(self) -> None:
        self._looked += 1
        pythons = {thread.native_id for thread in threading.enumerate()} | {os.getpid()}
        found = sorted(_threads() - self._others - pythons)
        # More than it has: another library has started some, too.
        if len(found) == (self.threads or 1) - 1:
            self._clocks = [_clock(thread) for thread in found]

    def _call(self, name: str) -> int:
        function = getattr(self._library, f"{self._affixes[0]}openblas_{name}{self._affixes[1]}")
        function.restype = ctypes.c_int
        return int(function())


def _threads() -> set[int]:
    """All of this process, by Linux's numbers."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def _mapped(package: str) -> list[str]:
    """The files of OpenBLAS in this process; those that came with `package` where there are some."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "openblas" in line and line.count("/")}
    own = {path for path in paths if path.startswith((f"{package}.libs{os.sep}", f"{package}{os.sep}"))}
    return sorted(own or paths)


def _clock(thread: int) -> int:
    """The id of the CPU clock of a thread, for `time.clock_gettime` (Linux's ``include/linux/posix-timers.h``)."""
    per_thread, scheduled = 4, 2
    return (~thread << 3) | per_thread | scheduled
