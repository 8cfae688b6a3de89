"""One trace document: what stands before and behind its events, and the events themselves, part by part.

The array ``traceEvents`` is cut between two events wherever a block ends, and each piece decoded by itself, so that
neither the document nor its objects exist as a whole. Only a piece that does not decode is looked at event by event.
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
from advisor.trace.cuts import Cut, Cuts
from advisor.trace.damage import salvage
from advisor.trace.decoding import Decoding, Made
from advisor.trace.events import ABSENT, AnyEvent, decode_array, decode_objects, decode_one, mend
from advisor.trace.fill import Piece
from advisor.trace.source import Blocks

T = TypeVar("T")

# What may stand around the events: deviceProperties, metadata, module hierarchies.
MAX_AROUND = 64 << 20
# Damaged places passed over before the file is given up.
MAX_DAMAGE = 1000

_SPACE = b" \t\r\n"
_KEY = re.compile(rb'"traceEvents"\s*:\s*(\S)')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Around(msgspec.Struct):
    """The top-level fields that are kept, as written."""

    device_properties: Raw = msgspec.field(default=ABSENT, name="deviceProperties")
    distributed: Raw = msgspec.field(default=ABSENT, name="distributedInfo")
    base: Raw = msgspec.field(default=ABSENT, name="baseTimeNanoseconds")
    host: Raw = msgspec.field(default=ABSENT, name="host_name")


@dataclass
class Document:
    """Reads one document. ``around`` and ``warnings`` are complete when :meth:`parts` is exhausted."""

    blocks: Blocks
    around: list[Around] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    damage: int = 0

    def parts(self, workers: int) -> Iterator[Made]:
        """The events as parts, in the order of the file; `workers` processes may decode them where there are many.

        Raises AdvisorError (BAD_TRACE) for what is empty, not JSON, or no trace.
        """
        stream = iter(self.blocks)
        rest, bare = self._head(stream)
        cuts = Cuts(stream, rest)
        end: bytes | None = None
        with Decoding(cuts, self.blocks, workers) as decoding:
            for cut, made in decoding:
                if made is not None:
                    yield made
                    continue
                piece, end, unread = self._decode(cut)
                if piece.events:
                    yield decoding.made(piece)
                if end is not None:
                    rest = decoding.behind(end)
                    break
                if unread:
                    decoding.back(unread)
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

    def _decode(self, cut: Cut) -> tuple[Piece, bytes | None, bytes]:
        """(events of a piece, what follows the list's end or None, what waits for the next piece)."""
        for mended in (False, True):
            text = mend(cut.array) if mended else cut.array
            try:
                events, text, after = _up_to_end(text, partial(decode_array, exact=False))
                return Piece(events, partial(decode_array, text, True)), after, b""
            except msgspec.ValidationError:
                # Right as JSON, but with a field of another type somewhere: event by event.
                try:
                    raws, text, after = _up_to_end(text, decode_objects)
                except (msgspec.DecodeError, RecursionError):
                    continue
                return self._each(raws), after, b""
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        found = salvage(cut.text, cut.last, MAX_DAMAGE)
        self._count_damage(found.damage)
        return self._each(found.texts), found.end, found.unread

    def _each(self, texts: list[bytes]) -> Piece:
        events: list[AnyEvent] = []
        kept: list[bytes] = []
        for text in texts:
            event = decode_one(text, False)
            if event is None:
                self._count_damage(1)
            else:
                events.append(event)
                kept.append(text)
        return Piece(events, lambda: [event for text in kept if (event := decode_one(text, True)) is not None])

    def _count_damage(self, places: int) -> None:
        self.damage += places
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
