"""What a run is measured with besides the host's clock: the device's, CPU seconds, resident memory, gradients."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from collections.abc import Iterable
from typing import Any

from .layout import DRAIN_RANGE, Timing
from .looking import is_capturing


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


def zero_filled(parameters: Iterable[Any]) -> int:
    """How many parameters hold a gradient full of zeros, judged by the first three that have one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    filled = bool(gradients) and all(not bool(gradient.detach().any()) for gradient in gradients[:3])
    return len(gradients) if filled else 0


def nonfinite(parameters: Iterable[Any], torch: Any) -> int:
    """How many parameters hold a NaN or an infinity: what a loss leaves behind that became one unseen.

    Waits for the device; a sum needs no memory to speak of.
    """
    found = 0
    for parameter in parameters:
        # A part of one that lies on several devices (a DTensor) only all of them together could sum.
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
            continue
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            half = parameter.element_size() <= 2  # its own sum overflows soon
            found += not math.isfinite(float(parameter.detach().sum(dtype=torch.float32 if half else None)))
    return found


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

    Linux only: elsewhere no thread can be asked for its own time.
    """

    def __init__(self) -> None:
        self._before = self._now()

    def begin(self) -> None:
        self._before = self._now()

    def end(self, timing: Timing, elapsed: float) -> None:
        """Put into `timing`, whose step is known, what came in the `elapsed` seconds since :meth:`begin`."""
        if self._before is None or not timing.step_s or elapsed <= 0:
            return
        # What is set aside, an evaluation say, is taken to be like the steps.
        now, steps = self._now(), elapsed / timing.step_s
        assert now is not None
        faults, kept, system_s = ((after - before) / steps for after, before in zip(now, self._before, strict=True))
        timing.page_faults, timing.pages_kept, timing.system_s = faults, max(0.0, kept), system_s

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Page faults of the process, pages that it holds, and system seconds of this thread, so far."""
        if not hasattr(resource, "RUSAGE_THREAD"):
            return None
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                held = float(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            return None
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return faults, held, resource.getrusage(resource.RUSAGE_THREAD).ru_stime


def peak_resident() -> int:
    """Peak resident set of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
