"""``Edit``: new texts for one or several files, taken or left as a whole, and the diff that says so."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from advisor.edit.sources import Source
from advisor.harness.layout import Site

_CONTEXT = 3  # lines of context, as `diff -u` and git have it


@dataclass(frozen=True)
class Edit:
    """A change of the user's source: ``before`` and ``after`` by absolute path; ``summary`` says it in words.

    ``site`` is the call that it changes, where that is not the one that was found at fault: the settings of a
    framework, whose own code runs the steps.
    """

    before: Mapping[str, Source]
    after: Mapping[str, Source]
    summary: str = ""
    site: Site | None = None

    @property
    def texts(self) -> dict[str, str]:
        """New text by absolute path."""
        return {path: source.text for path, source in self.after.items()}

    @property
    def contents(self) -> dict[str, bytes]:
        """New file contents by absolute path, in each file's own encoding."""
        return {path: source.encode() for path, source in self.after.items()}

    def diff(self, root: str) -> str:
        """Unified diff, paths relative to `root` below ``a/`` and ``b/``, as ``git apply`` takes it.

        Lines keep their own line ends: write it without newline translation. A file outside of `root` is named by its
        absolute path without the leading separator. For files that are not UTF-8 see :meth:`diff_bytes`.
        """
        return "".join(self._parts(root))

    def diff_bytes(self, root: str) -> bytes:
        """The same diff with each file's lines in that file's own encoding."""
        parts: list[bytes] = []
        for path in sorted(self.after):
            header, *body = unified_diff(self.before[path], self.after[path], root)
            # The name is the file system's, whatever the text is written in.
            parts += [os.fsencode(header), *(part.encode(self.after[path].encoding) for part in body)]
        return b"".join(parts)

    def summarized(self, summary: str) -> Edit:
        """The same edit with another summary."""
        return replace(self, summary=summary)

    def _parts(self, root: str) -> Iterator[str]:
        for path in sorted(self.after):
            yield from unified_diff(self.before[path], self.after[path], root)


def common_root(paths: Iterable[str]) -> str:
    """The deepest folder that holds all `paths`: a root for :meth:`Edit.diff` that leaves no file outside."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    return os.path.commonpath(folders) if folders else os.getcwd()


def unified_diff(before: Source, after: Source, root: str) -> Iterator[str]:
    """The diff of one file in pieces, its header first; nothing when the texts are equal."""
    old, new = _lines(before.marked_text), _lines(after.marked_text)
    if old == new:
        return
    name = _name(after.path, root)
    yield f"--- {_quoted('a/' + name)}\n+++ {_quoted('b/' + name)}\n"
    # autojunk would call the frequent lines of a long file junk and make its diffs larger than they need to be.
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@\n"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (_line(" ", line) for line in old[a:b])
            else:
                yield from (_line("-", line) for line in old[a:b])
                yield from (_line("+", line) for line in new[c:d])


def _lines(text: str) -> list[str]:
    # str.splitlines also splits at form feeds and Unicode separators, where git sees no line end.
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _span(start: int, end: int) -> str:
    length = end - start
    if length == 0:
        return f"{start},0"
    return str(start + 1) if length == 1 else f"{start + 1},{length}"


def _name(path: str, root: str) -> str:
    path, root = os.path.abspath(path), os.path.abspath(root)
    relative = os.path.relpath(path, root) if path.startswith(root.rstrip(os.sep) + os.sep) else path
    return relative.replace(os.sep, "/").lstrip("/")


def _quoted(name: str) -> str:
    if any(character in name for character in '"\\\n\t'):
        for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
            name = name.replace(plain, escaped)
        return f'"{name}"'
    # git and patch take what follows a name's spaces for a time stamp unless a tab ends the name.
    return name + "\t" if " " in name else name
