"""``Sources``: the user's files as text, with all that is needed to write them back byte for byte."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError

_BOM = "\ufeff"


@dataclass(frozen=True)
class Source:
    """One file: ``text`` is decoded, without the byte order mark, with its own newlines (CRLF stays CRLF)."""

    path: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False

    @property
    def marked_text(self) -> str:
        """The text as git sees it: with the byte order mark, where there is one."""
        return _BOM + self.text if self.bom else self.text

    def encode(self) -> bytes:
        """The file's bytes."""
        return self.marked_text.encode(self.encoding)


def read_source(path: str) -> Source:
    """Read `path` as Python does: coding cookie, byte order mark. Raises AdvisorError when that fails."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {error.strerror}; is it still where the script ran?") from None
    return decode(path, data)


def decode(path: str, data: bytes) -> Source:
    """A file's bytes as its source. Raises AdvisorError when they are no Python text."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        bom = encoding == "utf-8-sig"
        if bom:
            encoding = "utf-8"
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise AdvisorError(f"{path} is not readable as Python source: {error}; save it as UTF-8") from None
    return Source(path, text[1:] if bom else text, encoding, bom)


class Sources:
    """Source texts by absolute path: given ones first, the disk for the rest.

    `texts` are already patched texts, or a test's own; a given text keeps the encoding of the file of that path, where
    there is one. `protected` are folders whose files are no user code (site-packages, the standard library):
    nothing in them is ever edited. `settings` are the JSON, YAML and TOML files that the script read, `modules` the
    files of its own modules, with what they are imported as.
    """

    def __init__(
        self,
        texts: Mapping[str, str] | None = None,
        protected: Iterable[str] = (),
        settings: Iterable[str] = (),
        modules: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = tuple(settings)
        self.modules = {os.path.abspath(path): name for path, name in (modules or {}).items()}
        self._protected = tuple(os.path.abspath(folder) + os.sep for folder in protected)
        self._files: dict[str, Source] = {}
        for path, text in (texts or {}).items():
            path = os.path.abspath(path)
            on_disk = read_source(path) if os.path.isfile(path) else Source(path, "")
            text = text.removeprefix(_BOM)
            self._files[path] = replace(on_disk, text=text)

    def source(self, path: str) -> Source:
        """The file of that path. Raises AdvisorError when it cannot be read or decoded."""
        path = os.path.abspath(path)
        if path not in self._files:
            self._files[path] = read_source(path)
        return self._files[path]

    def text(self, path: str) -> str:
        """The text of that path, without a byte order mark."""
        return self.source(path).text

    def has(self, path: str) -> bool:
        """Whether there is such a file, given or on disk."""
        path = os.path.abspath(path)
        return path in self._files or os.path.isfile(path)

    def editable(self, path: str) -> bool:
        """Whether the file may be changed at all: it exists, and is the user's own."""
        path = os.path.abspath(path)
        installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
        return self.has(path) and not installed and not path.startswith(self._protected or ("\0",))

    def with_files(self, settings: Iterable[str] = (), modules: Mapping[str, str] | None = None) -> Sources:
        """These sources with more settings files and modules."""
        result = Sources(
            settings=dict.fromkeys((*self.settings, *settings)), modules={**self.modules, **(modules or {})}
        )
        result._protected = self._protected
        result._files = dict(self._files)
        return result

    def patched(self, texts: Mapping[str, str]) -> Sources:
        """These sources with `texts` (an ``Edit.texts``) in place of the old ones."""
        result = self.with_files()
        for path, text in texts.items():
            result._files[os.path.abspath(path)] = replace(self.source(path), text=text)
        return result


def text_of(path: str) -> str:
    """The text of a file that is only looked through; empty where there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
