"""One event of a Kineto trace as a typed struct, and the ways to get it out of bytes that resist.

Only the fields that :class:`advisor.trace.tables.Trace` keeps are declared; msgspec skips the rest without
building objects. Scalars are declared as any of number, string and null, because real files mix them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw

Scalar = int | float | str | None
ABSENT = Raw(b"")


class Args(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external": "External id",
        "external_2021": "external id",
        "occupancy": "est. achieved occupancy %",
        "sequence": "Sequence number",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "memory_bytes": "Bytes",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    """The ``args`` of an event. Lists are left as the bytes they are: most repeat, and are parsed once."""

    external: Scalar = -1
    external_2021: Scalar = -1
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
    bytes: Scalar = 0
    grid: Raw = ABSENT
    block: Raw = ABSENT
    occupancy: Scalar = None
    sequence: Scalar = -1
    dims: Raw = ABSENT
    types: Raw = ABSENT
    concrete: Raw = ABSENT
    memory_bytes: Scalar = 0
    allocated: Scalar = -1
    reserved: Scalar = -1
    device_type: Scalar = -1
    device_id: Scalar = -1
    name: Scalar = None
    labels: Scalar = None


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """An entry of ``traceEvents``; ``ts`` and ``dur`` in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = ""
    tid: Scalar = ""
    ts: Scalar = None
    dur: Scalar = 0
    args: Args | None = NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
    """The same with ``ts`` as its digits, where float64 cannot hold them."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = ""
    tid: Scalar = ""
    ts: Raw = ABSENT
    dur: Scalar = 0
    args: Args | None = NO_ARGS


AnyEvent = Event | ExactEvent

_EVENTS: dict[bool, msgspec.json.Decoder[Any]] = {
    False: msgspec.json.Decoder(list[Event]),
    True: msgspec.json.Decoder(list[ExactEvent]),
}
_RAWS = msgspec.json.Decoder(list[Raw])
_EVENT: dict[bool, msgspec.json.Decoder[Any]] = {
    False: msgspec.json.Decoder(Event),
    True: msgspec.json.Decoder(ExactEvent),
}


def decode_array(data: bytes | memoryview, exact: bool) -> list[AnyEvent]:
    """A whole JSON array of events. Raises what msgspec raises, and UnicodeDecodeError."""
    events: list[AnyEvent] = _EVENTS[exact].decode(data)
    return events


def decode_objects(data: bytes) -> list[bytes]:
    """The texts of the objects in a JSON array, whatever is in them."""
    return [text for raw in _RAWS.decode(data) if (text := bytes(raw)).startswith(b"{")]


# A string (raw line breaks end it: JSON allows none inside), or what JSON does not know outside strings.
_ODDITIES = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|,(?=\s*[\]}])|[-+]?\b(?:NaN|nan|Infinity|inf)\b', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _mend_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"" if token == b"," else b"null"
    if b"\\" in token:
        token = _BAD_ESCAPE.sub(lambda m: m.group() if m.group(1) else rb"\\", token)
        token = _SURROGATE.sub(b"?", token)
    return _CONTROL.sub(b" ", token)


def mend(data: bytes) -> bytes:
    """`data` with invalid UTF-8 replaced, NaN and Infinity as null, trailing commas dropped, strings escaped.

    Strings keep their text but for unescaped control characters, unknown escapes (``C:\\Users`` written
    with single backslashes) and surrogates, which no decoder takes.
    """
    clean = data.decode("utf-8", errors="replace").encode()
    return _ODDITIES.sub(_mend_token, clean)


def decode_one(data: bytes, exact: bool) -> AnyEvent | None:
    """One event from its own bytes, as tolerantly as possible; None when nothing can be made of them."""
    for mended in (False, True):
        if mended:
            data = mend(data)
        try:
            event: AnyEvent = _EVENT[exact].decode(data)
            return event
        except msgspec.ValidationError:
            break
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    try:
        loose = json.loads(data.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return _from_dict(loose, exact) if isinstance(loose, dict) else None


_ARGS = [(field.name, field.encode_name, field.type is Raw) for field in msgspec.structs.fields(Args)]


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None


def _from_dict(loose: dict[str, Any], exact: bool) -> AnyEvent:
    """An event of odd types: fields that have the right one are kept, the others count as absent."""
    given = loose.get("args")
    fields: dict[str, Any] = {}
    if isinstance(given, dict):
        for name, key, raw in _ARGS:
            value = given.get(key)
            if raw:
                if isinstance(value, list):
                    fields[name] = Raw(json.dumps(value).encode())
            elif _scalar(value) is not None:
                fields[name] = value
    ts = _scalar(loose.get("ts"))
    title, cat = loose.get("name"), loose.get("cat")
    common: dict[str, Any] = {
        "ph": str(loose.get("ph", "")),
        "cat": cat if isinstance(cat, str) else None,
        "name": title if isinstance(title, str) else "",
        "pid": _scalar(loose.get("pid")),
        "tid": _scalar(loose.get("tid")),
        "dur": _scalar(loose.get("dur")),
        "args": Args(**fields),
    }
    return ExactEvent(ts=Raw(json.dumps(ts).encode()), **common) if exact else Event(ts=ts, **common)
