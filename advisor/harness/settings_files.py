"""The user's JSON, YAML and TOML files that the script reads: where a value may stand that a fix changes."""

from __future__ import annotations

import os
from typing import Any

from .places import is_user_file

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_MOST_BYTES = 16 << 10  # larger ones hold data
_MOST = 20


class SettingsFiles:
    """Collects them into ``found`` (absolute paths, in the order of reading), those below `skipped` folders aside."""

    def __init__(self, found: list[str], skipped: tuple[str, ...]) -> None:
        self._found = found
        self._skipped = tuple(os.path.abspath(folder) + os.sep for folder in skipped)

    def read(self, path: Any) -> None:
        """Call with the path of each file that is opened for reading."""
        try:
            name = os.fsdecode(path)
        except TypeError:
            return
        if not name.endswith(SUFFIXES) or len(self._found) >= _MOST:
            return
        absolute = os.path.abspath(name)
        if absolute in self._found or absolute.startswith(self._skipped) or not is_user_file(absolute):
            return
        try:
            small = os.stat(absolute).st_size <= _MOST_BYTES
        except OSError:
            return
        if small:
            self._found.append(absolute)
