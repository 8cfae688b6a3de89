"""Time in Python's garbage collector, as the interpreter itself tells it (``gc.callbacks``).

The only probe beside the loaders' that stays on in the timing window: a callback takes less than a microsecond, and
collections are too rare, and too uneven, for the few steps of a profile.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from ..patches import Patch


class Garbage:
    """Seconds spent collecting since they were last asked for: all, and those of ``gc.collect()`` calls."""

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called  # at each gc.collect()
        self._began = 0.0
        self._asked = False
        self._seconds = self._asked_seconds = 0.0
        self._patch = Patch(gc, "collect", self._collect)

    def install(self) -> None:
        gc.callbacks.append(self._collecting)
        self._patch.on()

    def take(self) -> tuple[float, float]:
        """(seconds, of those in calls of ``gc.collect``) since the last call of this."""
        taken = self._seconds, self._asked_seconds
        self._seconds = self._asked_seconds = 0.0
        return taken

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
            return
        self._seconds += now - self._began
        if self._asked:
            self._asked_seconds += now - self._began

    def _collect(self, original: Any) -> Any:
        def collect(*args: Any, **kwargs: Any) -> Any:
            self._called()
            self._asked = True
            try:
                return original(*args, **kwargs)
            finally:
                self._asked = False

        return collect
