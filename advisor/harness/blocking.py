"""Where the script's own thread waits for something outside of the process: a clock, the disk, the network, a program.

What waits is timed, and put down to the line of the loop over steps from which it is reached: that is the line which
decides how often. The wrappers are in place in the profile and detail windows only.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType
from typing import Any

from .layout import Site
from .patches import Patch
from .places import at, is_ours, is_users, site_of, user_frames
from .sites import CallSites

KIND = "blocking"

# (module, attribute in it): calls in which a thread mostly waits. Modules that the script has not imported are left
# alone. Files of Python's own cannot be wrapped (immutable types), and a write of theirs mostly ends in the page cache.
_WAITS = (
    ("time", "sleep"),
    ("os", "fsync"),
    ("os", "fdatasync"),
    ("os", "system"),
    ("subprocess", "Popen.wait"),
    ("subprocess", "Popen.communicate"),
    ("http.client", "HTTPConnection.connect"),
    ("http.client", "HTTPSConnection.connect"),
    ("http.client", "HTTPConnection.getresponse"),
    ("http.client", "HTTPResponse.read"),
    ("socket", "create_connection"),
    ("socket", "socket.recv"),
    ("socket", "socket.recv_into"),
    ("socket", "socket.sendall"),
    ("shutil", "copyfile"),
    ("torch", "save"),
    ("numpy", "save"),
    ("numpy", "savez"),
    ("safetensors.torch", "save_file"),
    ("PIL.Image", "Image.save"),
    ("matplotlib.figure", "Figure.savefig"),
)
# A function's call: a hash of the functions around it and of where each of them is, and the function's code.
_Call = tuple[int, int]
_LOADING = os.path.join("torch", "utils", "data") + os.sep


class Blocking:
    """The wrappers; what they see goes to the call sites, under the kind ``blocking``."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._pid = os.getpid()
        self._thread = 0  # the one that takes the steps
        self._around: set[_Call] = set()  # the calls of the user's functions that the last optimizer step was in
        self._patches: dict[tuple[str, str], Patch] = {}
        self._nested = False

    def on(self) -> None:
        """Wrap what the script has imported by now; called in the thread that takes the steps."""
        self._thread = threading.get_ident()
        for module, name in _WAITS:
            if (module, name) not in self._patches:
                patch = self._patch(module, name)
                if patch is not None:
                    self._patches[module, name] = patch
        for patch in self._patches.values():
            patch.on()

    def off(self) -> None:
        for patch in self._patches.values():
            patch.off()

    def stepped(self) -> None:
        """An optimizer has stepped: remember who asked for it, from the inside out."""
        self._around = {call for _, call in _calls(list(user_frames()))}

    def line(self) -> Site | None:
        """The line of the loop over steps that the caller was reached from; None where it is not in that loop."""
        return self._innermost(list(user_frames(3)))

    def _innermost(self, frames: list[FrameType]) -> Site | None:
        return next((site_of(frame) for frame, call in _calls(frames) if call in self._around), None)

    def _patch(self, module: str, name: str) -> Patch | None:
        owner: Any = sys.modules.get(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        if owner is None or not callable(getattr(owner, last, None)):
            return None
        return Patch(owner, last, lambda original: self._timed(original, f"{module}.{name}"))

    def _timed(self, original: Any, what: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            # A forked worker has the wrapper, too; other threads may wait as long as they like.
            if self._nested or os.getpid() != self._pid or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._nested = True
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - began
                self._nested = False
                self._waited(what, elapsed, sys._getframe(1))

        return call

    def _waited(self, what: str, seconds: float, caller: FrameType) -> None:
        if not self._sites.count or not _for_the_script(caller):
            return
        frames = list(user_frames())
        inner = site_of(frames[0]) if frames else None
        self._put_down(self._innermost(frames) or inner, what, seconds, inner)

    def _put_down(self, site: Site | None, what: str, seconds: float, inner: Site | None) -> None:
        entry = self._sites.add(KIND, site)
        if entry is None or inner is None:
            return
        self._sites.took(entry, seconds)
        waits = entry.details.setdefault("seconds", {})  # in all: "time.sleep at log.py:12" → seconds
        place = f"{what} at {at(inner)}"
        waits[place] = waits.get(place, 0.0) + seconds


def _calls(frames: list[FrameType]) -> list[tuple[FrameType, _Call]]:
    """`frames`, from the inside out, each with its call. A step's function is called anew for each step, in a frame
    that may or may not be the last one's: what it is called by, and where, says whether it is the same call."""
    calls, outside = [], 0
    for frame in reversed(frames):
        calls.append((frame, (outside, id(frame.f_code))))
        outside = hash((outside, id(frame.f_code), frame.f_lasti))
    return calls[::-1]


def _for_the_script(frame: FrameType | None) -> bool:
    """Whether the script's own code waits at `frame`, or has a library wait for it: not the harness, nor a loader.

    A loader's wait is measured elsewhere, and is another matter.
    """
    among_users = False
    while frame is not None:
        among_users = among_users or is_users(frame)
        if _LOADING in frame.f_code.co_filename or (not among_users and is_ours(frame)):
            return False
        frame = frame.f_back
    return True
