"""A trace of any size, made by replicating a real one: each copy later in time, with ids of its own.

What tells the copies apart in a real file does so here: timestamps, correlation and external ids, flow ids, sequence
numbers, the numbers of steps. Everything else (names, shapes, arguments) repeats, as it does from step to step.

    python tests/benchmarks/big_traces/replicate.py TRACE OUT.json.gz --megabytes 1000
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

# Numbers of which each copy has its own range, by where they stand.
_IDS = ("correlation", "External id", "external id", "Sequence number", "Ev Idx", "Record function id",
        "Python id", "Python parent id")  # fmt: skip
_STEP = re.compile(r"ProfilerStep#(\d+)")
_GAP_NS = 100_000  # between the end of one copy and the start of the next


def read(path: Path) -> dict[str, Any]:
    """The document with numbers exactly as written."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


class Replica:
    """The events of one trace as a template: ``text(n)`` is its n-th copy as JSON, without brackets."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._numbers: list[int] = []
        self._shifts: list[str] = []
        self._span, self._ids = _extent(events)
        self._steps = 1 + max((int(m[1]) for e in events if (m := _STEP.fullmatch(str(e.get("name"))))), default=0)
        parts = [self._event(event) for event in events if event.get("ph") != "M"]
        self.events = len(parts)
        self._template = ",\n  ".join(parts)
        self._values = np.array(self._numbers, np.int64)
        kinds = np.array(self._shifts)
        self._per_copy = np.select(
            [kinds == "us", kinds == "id", kinds == "step"], [self._span // 1000, self._ids, self._steps], 0
        )

    def text(self, copy: int) -> str:
        return self._template % tuple((self._values + copy * self._per_copy).tolist())

    def _event(self, event: dict[str, Any]) -> str:
        """The event as JSON, with placeholders for the numbers that each copy has of its own."""
        marked = dict(event)
        args = event.get("args")
        if event.get("ts") is not None:
            whole, fraction = divmod(Decimal(event["ts"]), 1)
            marked["ts"] = _mark(int(whole), "us", f".{int(fraction * 1000):03d}")
        if isinstance(event.get("id"), int):
            marked["id"] = _mark(event["id"], "id")
        if isinstance(args, dict):
            marked["args"] = {
                key: _mark(value, "id") if key in _IDS and isinstance(value, int) else value
                for key, value in args.items()
            }
        step = _STEP.fullmatch(str(event.get("name")))
        if step:
            marked["name"] = "ProfilerStep#" + _mark(int(step[1]), "step")
        text = json.dumps(marked, default=float).replace("%", "%%")
        return _MARK.sub(self._placeholder, text)

    def _placeholder(self, mark: re.Match[str]) -> str:
        """Notes the number, in the order of the text."""
        self._shifts.append(mark[2])
        self._numbers.append(int(mark[3]))
        number = "%d" + mark[4]
        return number if mark[1] else f"{number}{mark[5]}"


# A number inside a string; where it is all of the string, the quotes go.
_MARK = re.compile(r'("?)<<(us|id|step) (-?\d+)((?:\.\d+)?)>>("?)')


def _mark(value: int, shift: str, after: str = "") -> str:
    return f"<<{shift} {value}{after}>>"


def _extent(events: list[dict[str, Any]]) -> tuple[int, int]:
    """(nanoseconds from one copy to the next, numbers from the ids of one copy to those of the next)."""
    starts = [Decimal(e["ts"]) for e in events if e.get("ph") == "X"]
    ends = [Decimal(e["ts"]) + Decimal(e.get("dur") or 0) for e in events if e.get("ph") == "X"]
    arguments = [e["args"] for e in events if isinstance(e.get("args"), dict)]
    ids = [args[key] for args in arguments for key in _IDS if isinstance(args.get(key), int)]
    ids += [e["id"] for e in events if isinstance(e.get("id"), int)]
    span = int((max(ends) - min(starts)) * 1000) + _GAP_NS
    return -(-span // 1000) * 1000, max(ids, default=0) + 1


def document_text(document: dict[str, Any], copies: int) -> Iterator[str]:
    """The JSON of `document` with its events `copies` times."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    replica = Replica(events)
    around = {key: value for key, value in document.items() if key != "traceEvents"}
    yield json.dumps(around, default=float)[:-1] + ', "traceEvents": [\n  '
    yield ",\n  ".join(json.dumps(event, default=float) for event in events if event.get("ph") == "M")
    for copy in range(copies):
        yield ",\n  " + replica.text(copy)
    yield "\n]}\n"


def write(source: Path, target: Path, megabytes: float) -> tuple[int, int]:
    """Writes the replicated trace, gzip unless `target` ends in ``.json``; returns (bytes of JSON, events)."""
    document = read(source)
    replica = Replica([event for event in document["traceEvents"] if isinstance(event, dict)])
    copies = max(1, round(megabytes * 1e6 / len(replica.text(0))))
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # what Kineto's and Python's gzip do
    size = 0
    with target.open("wb") as file:
        for text in document_text(document, copies):
            data = text.encode()
            size += len(data)
            file.write(packer.compress(data) if target.suffix == ".gz" else data)
        if target.suffix == ".gz":
            file.write(packer.flush())
    return size, copies * replica.events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000, help="of JSON, before compression")
    options = parser.parse_args()
    size, events = write(options.trace, options.target, options.megabytes)
    print(f"{options.target}: {size / 1e6:.0f} MB of JSON, {events:,} events")


if __name__ == "__main__":
    main()
