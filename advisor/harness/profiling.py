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


class OurProfiler:
    """One profiled window over the step boundaries: ``start`` at one, ``step`` at each following one."""

    def __init__(
        self, torch: ModuleType, run_dir: str, *, wait: int, warmup: int, active: int, detail: bool, stacks: bool
    ) -> None:
        self._torch: Any = torch
        self._run_dir = run_dir
        self._detail = detail
        self.length = wait + warmup + active
        self.lead = wait + warmup
        self.taken = 0
        self.path: str | None = None
        self.started_at = 0.0  # perf_counter at the boundary where the active part began
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
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
        if self.lead == 0:
            self.started_at = time.perf_counter()

    def step(self) -> bool:
        """Tell of a step boundary; True when the window is full and its trace written."""
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
        # Whatever state it was in: what could not be written is not there to be saved.
        with Inert.ours(), contextlib.suppress(Exception):
            self._profile.stop()

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

    def __init__(self, torch: ModuleType, note: Callable[[str], None]) -> None:
        self._torch: Any = torch
        self._note = note
        self._running: list[Any] = []
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
        ]

    @staticmethod
    def ours() -> _Ours:
        return _Ours()

    def install(self) -> None:
        for patch in self.patches:
            patch.on()

    def begin(self) -> None:
        """From now on the script's profilers are inert; one that is running is ended first."""
        for profile in self._running:
            self._say()
            with Inert.ours():
                try:
                    profile.stop()
                except Exception as error:  # the script's own callback may fail; that must not end our run
                    self._note(f"the script's own profiler failed when it was ended: {error}")
        self._running.clear()
        self.on = True

    def _say(self) -> None:
        self._note("the script uses torch.profiler itself: its profiler records nothing while the advisor measures")

    def _passes(self) -> bool:
        return Inert.depth > 0 or not self.on

    def _start(self, original: Any) -> Any:
        def start(profile: Any) -> Any:
            if not self._passes():
                self._say()
                return None
            if Inert.depth == 0:
                self._running.append(profile)
            return original(profile)

        return start

    def _stop(self, original: Any) -> Any:
        def stop(profile: Any) -> Any:
            if not self._passes():
                return None
            if profile in self._running:
                self._running.remove(profile)
            return original(profile)

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
            return original(profile)

        return enter
