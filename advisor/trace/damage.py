"""The events in a text that does not decode as a whole, one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from advisor.trace.cuts import MAX_EVENT

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
# A whole string (raw line breaks may not stand in one), a bracket, or a quote that opens no whole string.
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[{}\[\]"]', re.DOTALL)

_OPEN, _BROKEN, _NONE = -1, -2, -3


@dataclass
class Salvage:
    """What was found in a piece's text: events, places passed over, what waits for the next piece, what is behind."""

    texts: list[bytes] = field(default_factory=list)
    damage: int = 0
    unread: bytes = b""
    end: bytes | None = None  # what follows the array, where it ends in this piece


def salvage(body: bytes, last: bool, most: int) -> Salvage:
    """Looks at the text of an array (without brackets) event by event; `last`: nothing comes behind it.

    Gives up after `most` damaged places: each costs a look at what may be the whole rest.
    """
    found = Salvage()
    position = 0
    while True:
        start, stop = _next_event(body, position)
        if start == _NONE:
            found.end = body[stop:] if stop != _NONE else None
            return found
        if stop >= 0:
            found.texts.append(body[start:stop])
            position = stop
            continue
        if stop == _OPEN and not last and len(body) - start <= MAX_EVENT:
            found.unread = body[start:]
            return found
        # An event that never ends: damaged, or the file's last one, cut.
        boundary = _BOUNDARY.search(body, start)
        if boundary is None:
            return found
        found.damage += 1
        if found.damage > most:
            return found
        position = boundary.end()


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
