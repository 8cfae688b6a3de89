"""What a fetch reads from files: how many it opens, how often, and how many bytes come out of them.

By Python's ``open``, which NumPy, PIL, ``torch.load`` and zipfile call by that name when they need it, and by what the
kernel says that this process has read (``/proc/self/io``: "rchar", with what its page cache had). Files that are mapped
into memory are not counted there, as they should not be: of them only what is asked for is read. (An audit hook would
see every file, and cannot be taken away: ``id()``, by which tensors are found in dicts, is audited as well.)
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from typing import Any

from ..patches import Patch

_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")


class Reading:
    """``with`` around a fetch; the counts then say what was read in it. What goes wrong in it goes wrong unseen."""

    def __init__(self) -> None:
        self.opened: dict[str, int] = {}
        self.bytes: int | None = None
        self._before: int | None = None
        self._patches = [Patch(owner, "open", self._counted) for owner in (builtins, io)]

    def __enter__(self) -> None:
        self._before = _read_so_far()
        for patch in self._patches:
            patch.on()

    def __exit__(self, *error: object) -> None:
        for patch in self._patches:
            patch.off()
        now = _read_so_far()
        if now is not None and self._before is not None:
            self.bytes = now - self._before

    def _counted(self, original: Any) -> Any:
        opened = self.opened

        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                if "r" in mode and isinstance(file, (str, bytes, os.PathLike)):
                    name = os.fsdecode(file)
                    if not name.startswith(_OF_THE_SYSTEM):
                        opened[name] = opened.get(name, 0) + 1
            return original(file, mode, *args, **kwargs)

        return open

    def seen(self) -> dict[str, Any]:
        """For JSON: files, and how often one of them was opened."""
        return {"files": len(self.opened), "opens": sum(self.opened.values()), "read": self.bytes}


def _read_so_far() -> int | None:
    """Bytes that this process has read; None where nobody says."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
    return None
