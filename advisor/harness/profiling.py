"""Our profiler, and what becomes of the script's own while ours runs.

A second profiler inside ours cancels ours without a word, so from the timing window on the script's own is inert.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .layout import DETAIL_DIR, DETAIL_SUFFIX, TRACE_SUFFIX
from .patches import Patch
from .python_calls import PythonCalls


class OurProfiler:
    """One profiled window over the step boundaries: ``start`` at one, ``step`` at each following one.

    ``calls`` are counted in its first step, where that is not recorded.
    """

    def __init__(
        self,
        torch: ModuleType,
        run_dir: str,
        *,
        wait: int,
        warmup: int,
        active: int,
        detail: bool,
        stacks: bool,
        calls: PythonCalls | None = None,
    ) -> None:
        self._torch: Any = torch
        self._run_dir = run_dir
        self._detail = detail
        self.length = wait + warmup + active
        self.lead = wait + warmup
        self._calls = calls if self.lead else None
        self.taken = 0
        self.path: str | None = None
        self.started_at = 0.0  # perf_counter at the boundary where the active part began
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with Inert.ours(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a short script leaves no step for a warm-up: our business, not its log's
            self._profile: Any = torch.profiler.profile(
                activities=activities,
                schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
                on_trace_ready=self._export,
                with_stack=stacks,
                record_shapes=detail,
                profile_memory=detail,
            )

    def start(self) -> None:
        with Inert.ours():
            self._profile.start()
        if self._calls is not None:
            self._calls.begin()
        if self.lead == 0:
            self.started_at = time.perf_counter()

    def step(self) -> bool:
        """Tell of a step boundary; True when the window is full and its trace written."""
        self._end_counting()
        self.taken += 1
        with Inert.ours():
            self._profile.step()
            if self.taken == self.lead:
                self.started_at = time.perf_counter()
            if self.taken < self.length:
                return False
            self._profile.stop()
        return True

    def abandon(self) -> None:
        """End the window early; a trace that was begun is written if it holds anything."""
        self._end_counting()
        # Whatever state it was in: what could not be written is not there to be saved.
        with Inert.ours(), contextlib.suppress(Exception):
            self._profile.stop()

    def _end_counting(self) -> None:
        if self._calls is not None:
            self._calls.end()
            self._calls = None

    def _export(self, profile: Any) -> None:
        folder = os.path.join(self._run_dir, DETAIL_DIR) if self._detail else self._run_dir
        os.makedirs(folder, exist_ok=True)
        suffix = DETAIL_SUFFIX if self._detail else TRACE_SUFFIX
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}{suffix}"
        self.path = os.path.join(folder, name)
        profile.export_chrome_trace(self.path)


class _Ours:
    def __enter__(self) -> None:
        Inert.depth += 1

    def __exit__(self, *_: object) -> None:
        Inert.depth -= 1


class Inert:
    """Makes the script's own profilers do nothing from :meth:`begin` on; calls of ours pass through."""

    depth = 0

    def __init__(
        self,
        torch: ModuleType,
        note: Callable[[str], None],
        started: Callable[[str], Any],
        ended: Callable[[], None],
    ) -> None:
        self._torch: Any = torch
        self._note = note
        self._started = started  # tells where a profiler is started: the call site's entry, or None
        self._ended = ended  # called when one ends while the steps are timed
        self._running: list[tuple[Any, Any]] = []  # the script's profilers that are on, each with its entry
        self.on = False
        kineto = torch.profiler.profile
        self.patches = [
            Patch(kineto, "start", self._start),
            Patch(kineto, "stop", self._stop),
            Patch(kineto, "step", self._silent),
            Patch(kineto, "export_chrome_trace", self._empty_file),
            Patch(kineto, "export_stacks", self._empty_file),
            Patch(kineto, "key_averages", self._empty_list),
            Patch(kineto, "events", self._empty_list),
            Patch(torch.autograd.profiler.profile, "__enter__", self._legacy),
            Patch(torch.autograd.profiler.profile, "__exit__", self._left),
            Patch(torch.autograd.profiler.emit_nvtx, "__enter__", self._emits),
            Patch(torch.autograd.profiler.emit_nvtx, "__exit__", self._left),
        ]

    @staticmethod
    def ours() -> _Ours:
        return _Ours()

    def install(self) -> None:
        for patch in self.patches:
            patch.on()

    def begin(self, timing: bool = False) -> None:
        """From now on the script's profilers are inert; one that is running is ended first.

        When `timing` begins, those that record all the steps are left on: what they cost is a part of the script's
        step. They end when ours is about to begin.
        """
        running, self._running = self._running, []
        for profile, entry in running:
            if timing and _continuous(profile):
                self._running.append((profile, entry))
                if entry is not None:
                    entry.details["timed"] = True
                continue
            self._say()
            with Inert.ours():
                try:
                    if hasattr(profile, "stop"):
                        profile.stop()
                    else:
                        profile.__exit__(None, None, None)
                        profile.enabled = False
                except Exception as error:  # the script's own callback may fail; that must not end our run
                    self._note(f"the script's own profiler failed when it was ended: {error}")
        self.on = True

    @property
    def timed(self) -> bool:
        """One of the script's own is on while the steps are timed."""
        return self.on and bool(self._running)

    def _runs(self, profile: Any) -> None:
        """The script has started a profiler, not the harness."""
        if Inert.depth == 0:
            self._running.append((profile, self._started(type(profile).__name__)))

    def _ends(self, profile: Any) -> bool:
        """The script ends a profiler; whether it is one that ran."""
        entries = [entry for each, entry in self._running if each is profile]
        self._running = [(each, its) for each, its in self._running if each is not profile]
        if entries and self.on:
            for entry in filter(None, entries):
                entry.details["timed"] = False
            self._ended()
        return bool(entries)

    def _say(self) -> None:
        self._note("the script uses torch.profiler itself: its profiler records nothing while the advisor measures")

    def _passes(self) -> bool:
        return Inert.depth > 0 or not self.on

    def _start(self, original: Any) -> Any:
        def start(profile: Any) -> Any:
            if not self._passes():
                self._say()
                return None
            self._runs(profile)
            return original(profile)

        return start

    def _stop(self, original: Any) -> Any:
        def stop(profile: Any) -> Any:
            if self._ends(profile):
                with Inert.ours():
                    return original(profile)
            return original(profile) if self._passes() else None

        return stop

    def _silent(self, original: Any) -> Any:
        def call(profile: Any) -> Any:
            if not self._passes():
                return None
            return original(profile)

        return call

    def _empty_file(self, original: Any) -> Any:
        def export(profile: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            if self._passes() or profile.profiler is not None:
                return original(profile, path, *args, **kwargs)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": []}, file)
            return None

        return export

    def _empty_list(self, original: Any) -> Any:
        def get(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if self._passes() or profile.profiler is not None:
                return original(profile, *args, **kwargs)
            return self._torch.autograd.profiler_util.EventList([])

        return get

    def _legacy(self, original: Any) -> Any:
        def enter(profile: Any) -> Any:
            if not self._passes():
                self._say()
                profile.enabled = False
                profile.function_events = self._torch.autograd.profiler_util.EventList([])
                return profile
            entered = original(profile)
            if profile.enabled:
                self._runs(profile)
            return entered

        return enter

    def _emits(self, original: Any) -> Any:
        def enter(profile: Any) -> Any:
            if not self._passes():
                self._say()
                profile.enabled = False
                return profile
            entered = original(profile)
            if profile.enabled:
                self._runs(profile)
            return entered

        return enter

    def _left(self, original: Any) -> Any:
        def leave(profile: Any, *exception: Any) -> Any:
            self._ends(profile)
            return original(profile, *exception)

        return leave


def _continuous(profile: Any) -> bool:
    """Whether it records every step from its start on: it has no schedule, as ``torch.profiler`` takes one."""
    return getattr(getattr(profile, "schedule", None), "__name__", "") in ("", "_default_schedule_fn")
