"""A process that fills parts: what :mod:`advisor.trace.workers` starts, and the shared memory that both sides use.

The parent writes the text of a piece into a slot of the memory and says where; the worker leaves the columns in the
same slot, the text being of no use any more, and says where. Only these messages go through the socket.
"""

from __future__ import annotations

import gc
import mmap
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from advisor.trace.fill import Column, Filler, Part

# A piece is about a block (1 MiB), its columns less; what is larger does not go through the memory.
SLOT = 4 << 20
SLOTS = 4  # one that is worked at, two that wait, one that is being written or read
_ALIGNED = 64


@dataclass(frozen=True)
class Place:
    """Where in the memory an array is."""

    offset: int
    count: int
    dtype: str


@dataclass(frozen=True)
class Packed:
    """A part whose arrays are in the memory, as far as they had room."""

    tables: dict[str, dict[str, Place | Column]]
    part: Part  # all but its tables


def pack(part: Part, memory: mmap.mmap, slot: int) -> Packed:
    """Puts the arrays of `part` into a slot."""
    at, end = slot * SLOT, (slot + 1) * SLOT
    tables: dict[str, dict[str, Place | Column]] = {}
    for table, columns in part.tables.items():
        places: dict[str, Place | Column] = {}
        for name, values in columns.items():
            if at + values.nbytes > end:
                places[name] = values
                continue
            np.frombuffer(memory, values.dtype, len(values), at)[:] = values
            places[name] = Place(at, len(values), values.dtype.str)
            at += -(-values.nbytes // _ALIGNED) * _ALIGNED
        tables[table] = places
    return Packed(tables, replace(part, tables={}))


def unpack(packed: Packed, memory: mmap.mmap) -> Part:
    """The part, with arrays of its own."""
    tables = {
        table: {name: _array(place, memory) for name, place in places.items()}
        for table, places in packed.tables.items()
    }
    return replace(packed.part, tables=tables)


def _array(place: Place | Column, memory: mmap.mmap) -> Column:
    if not isinstance(place, Place):
        return place
    inside: Column = np.frombuffer(memory, place.dtype, place.count, place.offset)
    return np.array(inside)


def main(socket: int, memory_file: int) -> None:
    """Works until the parent closes the socket."""
    connection: Connection[Any, Any] = Connection(socket)
    memory = mmap.mmap(memory_file, SLOT * SLOTS)
    view = memoryview(memory)
    filler = Filler()
    gc.disable()  # nothing here goes in circles
    try:
        connection.send(None)  # ready
        while True:
            slot, length = connection.recv()
            part = filler.fill(view[slot * SLOT : slot * SLOT + length])
            connection.send(None if part is None else pack(part, memory, slot))
    except (EOFError, OSError, KeyboardInterrupt):
        sys.exit()
