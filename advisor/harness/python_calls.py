"""How much Python a step runs: whether a profiler can record its stacks."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


class PythonCalls:
    """Counts the calls of Python and built-in functions in this thread, up to `most`.

    A profile function costs about 0.1 us per call, and none once `most` calls are counted. Where the script has one of
    its own nothing is counted: that one stays.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._counting = False
        self._seen = self._event  # one bound method, which can be recognised
        self.known = False  # whether a whole stretch was counted

    @property
    def few(self) -> bool:
        """Whether fewer than `most` calls came in the stretch that was counted; False where none was."""
        return self.known and self._count < self._most

    def begin(self) -> None:
        """Count anew from here on."""
        self.known, self._count = False, 0
        self._counting = sys.getprofile() is None
        if self._counting:
            sys.setprofile(self._seen)

    def end(self) -> None:
        """The stretch is over; nothing where none began."""
        if self._counting:
            self._counting = False
            # What another profile function has taken the place of was counted in part.
            self.known = self._count >= self._most or sys.getprofile() is self._seen
            if sys.getprofile() is self._seen:
                sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self._count += 1
            if self._count >= self._most:
                sys.setprofile(None)
