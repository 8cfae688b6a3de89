"""What a run is measured with besides the host's clock: the device's, CPU seconds, resident memory."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import Any

from ..layout import DRAIN_RANGE
from ..looking import is_capturing


class DeviceClock:
    """One event per step boundary on the GPU, read when the window is over; does nothing where there is no GPU.

    On the script's device, which need not be the current one: another may be full, and none of its business. What
    cannot be asked is not known, and costs the script nothing: then the host's clock stands.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # As they are before the call sites' wrappers see them: these waits are none of the script's.
        self._synchronize, self._wait = torch.cuda.synchronize, torch.cuda.Event.synchronize
        self._events: list[Any] = []
        self.device: int | None = None  # index of the GPU that the steps run on

    def reset(self) -> None:
        self._events = []

    def mark(self) -> None:
        if self.device is not None:
            self._events.append(self._event())

    def _event(self) -> Any:
        """One behind what the device was given so far; None where there can be none, as in a CUDA graph."""
        if is_capturing(self._torch):
            return None
        with contextlib.suppress(Exception), self._torch.cuda.device(self.device):
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return None

    def drain(self) -> None:
        """Wait until the device has done all that it was given.

        On both sides of a profiled window, which then holds the device's work of its own steps: a host that runs ahead
        would have launched in it what is done later, and the device would do in it what was launched before.
        """
        if self.device is not None and not is_capturing(self._torch):
            # An error of the script's own kernels comes up again when it asks for them itself.
            with contextlib.suppress(Exception), self._torch.autograd.profiler.record_function(DRAIN_RANGE):
                self._synchronize(self.device)

    def seconds(self) -> list[float]:
        """Between successive marks; waits for the last one. None at all where a mark is missing."""
        if len(self._events) < 2 or any(event is None for event in self._events):
            return []
        with contextlib.suppress(Exception), self._torch.cuda.device(self.device):
            self._wait(self._events[-1])
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self._events, self._events[1:], strict=False)]
        return []


def children_cpu(pids: set[int]) -> float:
    """CPU seconds used so far by these processes (Linux: /proc/PID/stat, fields 14 and 15)."""
    total, tick = 0, os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        except (OSError, IndexError, ValueError):
            continue
    return total / tick


class PageFaults:
    """Pages that the kernel maps when they are first touched, and what it takes of the steps for that (getrusage(2)).

    Asked at each boundary, in two microseconds, so that steps with something beside them can be left out: an epoch's
    start forks workers, and each page that is written afterwards is copied. Linux only: elsewhere no thread can be
    asked for its own time.
    """

    def __init__(self) -> None:
        self._known = hasattr(resource, "RUSAGE_THREAD")
        self._before = (0, 0.0)
        self._held: int | None = None

    def begin(self) -> None:
        """The timed steps begin."""
        self._held = resident_pages()

    def take(self) -> tuple[int, float]:
        """Page faults of the process, and system seconds of this thread, since it was asked last."""
        if not self._known:
            return 0, 0.0
        own = resource.getrusage(resource.RUSAGE_THREAD).ru_stime
        now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, own
        before, self._before = self._before, now
        return now[0] - before[0], now[1] - before[1]

    def kept(self) -> int | None:
        """Pages that the process holds now beyond those when the timed steps began; None where that is unknown."""
        held = resident_pages()
        return max(0, held - self._held) if self._known and held is not None and self._held is not None else None


def resident_pages() -> int | None:
    """Pages that the process holds; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def peak_resident() -> int:
    """Peak resident set of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
