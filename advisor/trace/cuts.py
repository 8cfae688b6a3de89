"""A stream of blocks → the texts of pieces of the array ``traceEvents``, cut between two events.

Where a cut goes is a guess (a ``},{`` may also stand inside a string). That ``[piece]`` is valid JSON proves it right,
because the pieces before it were; so pieces may be decoded ahead, in any order, and taken back when one was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# No event is longer (call stacks and shape lists included); an opened one that does not end here is damaged.
MAX_EVENT = 1 << 20

_SPACE = b" \t\r\n"


@dataclass(frozen=True)
class Cut:
    """One piece: ``array`` is its text in brackets, ``gap`` what stands between it and the next piece."""

    array: bytes
    gap: bytes
    last: bool

    @property
    def text(self) -> bytes:
        """What the file has there."""
        return self.array[1:-1] + self.gap


class Cuts:
    """Cuts a stream of blocks, which begins behind the array's opening bracket with `rest`."""

    def __init__(self, stream: Iterator[bytes], rest: bytes) -> None:
        self.stream = stream
        self._rest = rest
        self._ended = False

    def next(self) -> Cut | None:
        """The next piece; the one that the stream ends in is ``last``, and nothing comes behind it."""
        if self._ended:
            return None
        rest = self._rest
        for block in self.stream:
            cut = _boundary(block)
            if cut < 0:
                rest += block
                if len(rest) <= 2 * MAX_EVENT:
                    continue
                block, rest, cut = rest, b"", len(rest)
            trimmed = _trim(block, cut)
            self._rest = block[cut:]
            return Cut(b"".join((b"[", rest, memoryview(block)[:trimmed], b"]")), block[trimmed:cut], False)
        self._ended, self._rest = True, b""
        return Cut(b"".join((b"[", rest, b"]")), b"", True)

    def back(self, unread: bytes, later: Iterable[Cut]) -> None:
        """Puts back what is `unread` of a piece, and the pieces that were cut after it."""
        self._rest = b"".join((unread, *(cut.text for cut in later), self._rest))
        self._ended = False

    def behind(self, end: bytes, later: Iterable[Cut]) -> bytes:
        """What follows the array as far as it was read, when the list ended in a piece with `end` behind it."""
        self.back(end, later)
        return self._rest


def _trim(block: bytes, cut: int) -> int:
    """Where the separator before `cut` begins."""
    separator = block[max(0, cut - 64) : cut]
    return cut - len(separator) + len(separator.rstrip(_SPACE + b","))


def _boundary(block: bytes) -> int:
    """Where a new event seems to begin, as near to the end of `block` as possible; -1 where none does."""
    position = len(block)
    for _ in range(1000):
        position = block.rfind(b"{", 0, position)
        if position <= 0:
            return -1
        before = block[max(0, position - 64) : position].rstrip(_SPACE)
        if before.endswith(b",") and before[:-1].rstrip(_SPACE).endswith(b"}"):
            return position
    return -1
