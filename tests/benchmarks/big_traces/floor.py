"""The least that reading a trace costs on one core: read, gunzip, decode into typed events. Prints the events.

    python tests/benchmarks/big_traces/floor.py TRACE.json.gz
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from isal import igzip

Scalar = int | float | str | None


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "sequence": "Sequence number",
        "dims": "Input Dims",
        "types": "Input type",
        "total": "Total Allocated",
        "occupancy": "est. achieved occupancy %",
    },
):
    """Of an event's arguments, those that any analysis needs."""

    external: Scalar = None
    correlation: Scalar = None
    device: Scalar = None
    stream: Scalar = None
    bytes: Scalar = None
    sequence: Scalar = None
    total: Scalar = None
    occupancy: Scalar = None
    grid: msgspec.Raw = msgspec.Raw(b"")
    block: msgspec.Raw = msgspec.Raw(b"")
    dims: msgspec.Raw = msgspec.Raw(b"")
    types: msgspec.Raw = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """An entry of ``traceEvents``."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: Args | None = None


class Document(msgspec.Struct):
    """The object around them."""

    events: list[Event] = msgspec.field(name="traceEvents")


if __name__ == "__main__":
    text = igzip.decompress(Path(sys.argv[1]).read_bytes())
    print(len(msgspec.json.decode(text, type=Document).events))
