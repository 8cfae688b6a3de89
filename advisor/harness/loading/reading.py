"""What a fetch reads from files: how many it opens, how often, and how many bytes come out of them.

By Python's audit event ``open``, which whatever opens a file in Python raises (NumPy, PIL, ``torch.load``, zipfile),
and by what the kernel says that this process has read (``/proc/self/io``: "rchar", with what its page cache had). Files
that are mapped into memory are not counted there, as they should not be: of them only what is asked for is read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

_OF_PYTHON = (".py", ".pyc", ".pyi", ".so", ".pth")  # what imports open
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
_counting: dict[str, int] | None = None  # path → how often it was opened; None while nobody counts
_hooked = False


class Reading:
    """``with`` around a fetch; the counts then say what was read in it."""

    def __init__(self) -> None:
        self.opened: dict[str, int] = {}
        self.bytes: int | None = None

    def __enter__(self) -> None:
        global _counting, _hooked
        if not _hooked:  # for good: a hook cannot be taken away again
            sys.addaudithook(_heard)
            _hooked = True
        self._before = _read_so_far()
        _counting = self.opened

    def __exit__(self, *error: object) -> None:
        global _counting
        _counting = None
        now = _read_so_far()
        if now is not None and self._before is not None:
            self.bytes = now - self._before

    def seen(self) -> dict[str, Any]:
        """For JSON: files, and how often one of them was opened."""
        return {"files": len(self.opened), "opens": sum(self.opened.values()), "read": self.bytes}


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    counting = _counting
    if counting is None or event != "open":
        return
    with contextlib.suppress(Exception):
        path, mode, flags = arguments
        reads = "r" in mode if isinstance(mode, str) else flags & os.O_ACCMODE == os.O_RDONLY
        if not reads or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(path)
        if not name.endswith(_OF_PYTHON) and not name.startswith(_OF_THE_SYSTEM):
            counting[name] = counting.get(name, 0) + 1


def _read_so_far() -> int | None:
    """Bytes that this process has read; None where nobody says."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
    return None
