"""A stream of blocks → lists of typed events, the head and the tail of the document.

The array ``traceEvents`` is cut between two events wherever a block ends, and each piece decoded by itself, so
that neither the document nor its objects exist as a whole. Where the cut goes is a guess (a ``},{`` may also
stand inside a string); that ``[piece]`` is valid JSON proves it right, because the pieces before it were.
Only a piece that does not decode is looked at event by event.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Raw

from advisor.errors import BAD_TRACE, AdvisorError
from advisor.trace.events import ABSENT, AnyEvent, decode_array, decode_objects, decode_one, mend
from advisor.trace.source import Blocks

T = TypeVar("T")

# No event is longer (call stacks and shape lists included); an opened one that does not end here is damaged.
MAX_EVENT = 1 << 20
# What may stand around the events: deviceProperties, metadata, module hierarchies.
MAX_AROUND = 64 << 20
# Damaged places passed over before the file is given up.
MAX_DAMAGE = 1000

_SPACE = b" \t\r\n"
_KEY = re.compile(rb'"traceEvents"\s*:\s*(\S)')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
# A whole string (raw line breaks may not stand in one), a bracket, or a quote that opens no whole string.
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[{}\[\]"]', re.DOTALL)


class Around(msgspec.Struct):
    """The top-level fields that are kept, as written."""

    device_properties: Raw = msgspec.field(default=ABSENT, name="deviceProperties")
    distributed: Raw = msgspec.field(default=ABSENT, name="distributedInfo")
    base: Raw = msgspec.field(default=ABSENT, name="baseTimeNanoseconds")
    host: Raw = msgspec.field(default=ABSENT, name="host_name")


@dataclass(frozen=True)
class Piece:
    """Events, and the JSON (an array of them, or one text each) that they were decoded from."""

    events: list[AnyEvent]
    texts: list[bytes]

    def exactly(self) -> list[AnyEvent]:
        """The same events with timestamps as digits."""
        if len(self.texts) == 1 and self.texts[0][:1] == b"[":
            return decode_array(self.texts[0], True)
        return [event for text in self.texts if (event := decode_one(text, True)) is not None]


@dataclass
class Document:
    """Reads one document. ``around`` and ``warnings`` are complete when :meth:`events` is exhausted.

    ``exact`` may be set between two lists of events: from then on timestamps come as digits.
    """

    blocks: Blocks
    exact: bool = False
    around: list[Around] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    damage: int = 0

    def events(self) -> Iterator[Piece]:
        """The events, piece by piece, in the order of the file.

        Raises AdvisorError (BAD_TRACE) for what is empty, not JSON, or no trace.
        """
        stream = iter(self.blocks)
        rest, bare = self._head(stream)
        end: bytes | None = None
        block: bytes | None = b""
        while end is None and block is not None:
            block = next(stream, None)
            if block is None:
                array, gap, carry = b"".join((b"[", rest, b"]")), b"", b""
            else:
                cut = _cut(block)
                if cut < 0:
                    rest += block
                    if len(rest) <= 2 * MAX_EVENT:
                        continue
                    block, rest, cut = rest, b"", len(rest)
                trimmed = _trim(block, cut)
                array = b"".join((b"[", rest, memoryview(block)[:trimmed], b"]"))
                gap, carry = block[trimmed:cut], block[cut:]
            piece, end, unread = self._decode(array, gap, last=block is None)
            if piece.events:
                yield piece
            rest = (unread if end is None else end) + carry
        closed = end is not None and (bare or self._tail(rest, stream))
        if self.blocks.cut_short:
            self.warnings.append(f"the file is incomplete: {self.blocks.cut_short}; read up to the last whole event")
        elif not closed:
            self.warnings.append("the file is incomplete: it ends too early; read up to the last whole event")
        if self.damage:
            self.warnings.append(f"{self.damage} damaged place(s) in the file were passed over")

    def _head(self, stream: Iterator[bytes]) -> tuple[bytes, bool]:
        """Consumes everything up to the first event; returns what was read beyond, and whether it is a bare list."""
        path = self.blocks.path
        data = bytearray()
        searched = 0
        for block in stream:
            data += block
            if not searched:
                data = data.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
                if not data:
                    continue
                if data[:1] == b"[":
                    return bytes(data[1:]), True
                if data[:1] != b"{":
                    raise AdvisorError(f"{path} is not JSON; expected a trace from torch.profiler", BAD_TRACE)
            for match in _KEY.finditer(data, max(0, searched - 64)):
                if self._take_head(bytes(data[: match.start()])):
                    if match.group(1) != b"[":
                        raise AdvisorError(f"{path} is no trace: its traceEvents is not a list", BAD_TRACE)
                    return bytes(data[match.end() :]), False
            searched = len(data)
            if searched > MAX_AROUND:
                raise AdvisorError(
                    f"{path} has no traceEvents in its first {MAX_AROUND >> 20} MiB; "
                    "expected a trace from torch.profiler",
                    BAD_TRACE,
                )
        if not data:
            why = f" ({self.blocks.cut_short})" if self.blocks.cut_short else ""
            raise AdvisorError(f"{path} is empty{why}; record the trace again", BAD_TRACE)
        # A damaged head: the key is taken where it first stands before a list.
        for match in _KEY.finditer(data):
            if match.group(1) == b"[":
                self.warnings.append("what stands before the events in the file is damaged and was left out")
                return bytes(data[match.end() :]), False
        try:
            msgspec.json.decode(mend(bytes(data)))
        except (msgspec.DecodeError, RecursionError):
            if self.blocks.cut_short or data.rstrip(_SPACE)[-1:] != b"}":
                raise AdvisorError(f"{path} ends before its first event; record the trace again", BAD_TRACE) from None
            raise AdvisorError(f"{path} is not JSON; expected a trace from torch.profiler", BAD_TRACE) from None
        raise AdvisorError(
            f"{path} is JSON but no trace: it has no traceEvents; expected what torch.profiler exports", BAD_TRACE
        )

    def _take_head(self, head: bytes) -> bool:
        """Keeps the fields of `head` (an object up to some key); False when that is not where a key can stand."""
        for attempt in (head, mend(head)):
            try:
                self.around.append(msgspec.json.decode(attempt + b'"":0}', type=Around))
                return True
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        return False

    def _tail(self, rest: bytes, stream: Iterator[bytes]) -> bool:
        """Keeps the fields behind the events; False when the document is not closed."""
        parts = [rest]
        size = len(rest)
        for block in stream:
            size += len(block)
            if size > MAX_AROUND:
                self.warnings.append("what stands behind the events in the file is too long and was left out")
                return True
            parts.append(block)
        tail = b"".join(parts)
        for attempt in (tail, mend(tail)):
            try:
                self.around.append(msgspec.json.decode(b'{"":0' + attempt, type=Around))
                return True
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        return False

    def _decode(self, array: bytes, gap: bytes, last: bool) -> tuple[Piece, bytes | None, bytes]:
        """(events of `array`, what follows the list's end or None, what waits for the next piece).

        `gap` is what stands between the array's text and the next piece.
        """
        body = array[1:-1] + gap
        for mended in (False, True):
            text = mend(array) if mended else array
            try:
                events, text, after = _up_to_end(text, partial(decode_array, exact=self.exact))
                return Piece(events, [text]), after, b""
            except msgspec.ValidationError:
                # Right as JSON, but with a field of another type somewhere: event by event.
                try:
                    raws, text, after = _up_to_end(text, decode_objects)
                except (msgspec.DecodeError, RecursionError):
                    continue
                return self._each(raws), after, b""
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        return self._one_by_one(body, last)

    def _each(self, texts: list[bytes]) -> Piece:
        events: list[AnyEvent] = []
        kept: list[bytes] = []
        for text in texts:
            event = decode_one(text, self.exact)
            if event is None:
                self._count_damage()
            else:
                events.append(event)
                kept.append(text)
        return Piece(events, kept)

    def _one_by_one(self, body: bytes, last: bool) -> tuple[Piece, bytes | None, bytes]:
        """The same for an array that does not decode as a whole."""
        texts: list[bytes] = []
        end: bytes | None = None
        unread = b""
        position = 0
        while True:
            start, stop = _next_event(body, position)
            if start == _NONE:
                end = body[stop:] if stop != _NONE else None
                break
            if stop >= 0:
                texts.append(body[start:stop])
                position = stop
                continue
            if stop == _OPEN and not last and len(body) - start <= MAX_EVENT:
                unread = body[start:]
                break
            # An event that never ends: damaged, or the file's last one, cut.
            boundary = _BOUNDARY.search(body, start)
            if boundary is None:
                break
            self._count_damage()
            position = boundary.end()
        return self._each(texts), end, unread

    def _count_damage(self) -> None:
        self.damage += 1
        if self.damage > MAX_DAMAGE:
            raise AdvisorError(
                f"{self.blocks.path} is damaged in more than {MAX_DAMAGE} places; record the trace again", BAD_TRACE
            )


def _up_to_end(array: bytes, decode: Callable[[bytes], T]) -> tuple[T, bytes, bytes | None]:
    """Decodes `array`, which may end before its last byte: (result, the array's text, what follows it or None)."""
    try:
        return decode(array), array, None
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if not trailing:
            raise
    # msgspec counts the byte it stumbled over from 1; a bare list's own end is such a byte.
    end = array.rfind(b"]", 0, int(trailing.group(1)) - 1) + 1
    return decode(array[:end]), array[:end], array[end:-1]


def _trim(block: bytes, cut: int) -> int:
    """Where the separator before `cut` begins."""
    separator = block[max(0, cut - 64) : cut]
    return cut - len(separator) + len(separator.rstrip(_SPACE + b","))


def _cut(block: bytes) -> int:
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


_OPEN, _BROKEN, _NONE = -1, -2, -3


def _next_event(body: bytes, position: int) -> tuple[int, int]:
    """The next object in the text of an array, as (start, stop).

    stop is _OPEN when the text ends within the object, _BROKEN when its brackets cannot be right any more.
    start is _NONE when there is no further object; stop then is behind the array's end, or _NONE without one.
    """
    containers = bytearray()
    start = _NONE
    for token in _TOKEN.finditer(body, position):
        kind = token.group()
        if not containers:
            if kind == b"{":
                start = token.start()
                containers += kind
            elif kind == b"]":
                return _NONE, token.end()
        elif kind == b'"':  # a string without an end: what follows cannot be told from its text
            return start, _OPEN
        elif kind == b"{" or kind == b"[":
            if containers[-1:] == b"{" and body[max(0, token.start() - 64) : token.start()].rstrip()[-1:] == b",":
                return start, _BROKEN  # a bracket where a key must stand: a closing one is missing before
            containers += kind
        elif kind == b"}" or kind == b"]":
            if containers.pop() != (0x7B if kind == b"}" else 0x5B):
                return start, _BROKEN
            if not containers:
                return start, token.end()
    return (start, _OPEN) if containers else (_NONE, _NONE)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def loads(raw: Raw) -> object:
    """The value of a field kept as written; None where it is absent or unreadable, and for numbers without end."""
    try:
        text = bytes(raw).decode("utf-8", errors="replace")
        value: object = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value
