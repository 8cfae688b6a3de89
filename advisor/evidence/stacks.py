"""The calls of Python functions on one thread, as a window with stacks recorded them, and how they nest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from advisor.evidence.coded import Mask
from advisor.trace import intervals
from advisor.trace.tables import Ints, Trace

# The profiler's names of a Python function: "log.py(12): record", "<built-in function sleep>", "<built-in method recv
# of _socket.socket object at 0x…>" (torch/csrc/autograd/profiler_python.cpp).
_WRITTEN = re.compile(r"(?P<file>[^()]*)\((?P<line>\d+)\): (?P<own>.+)|<built-in (?:function|method) (?P<built_in>\w+)")

# What Python calls functions that have no name of their own: they belong to the one that they stand in.
UNNAMED = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
MODULE = "<module>"  # what stands outside of all functions


class Function(NamedTuple):
    """A Python function, or one of C: without a file and a line."""

    path: str  # as the profiler writes it: what sys.path has of it is left out
    line: int  # its first; where it runs, for one that ran before the window began
    name: str

    @property
    def file(self) -> str:
        """The name of its file without the folders."""
        return os.path.basename(self.path)

    def is_of(self, file: str) -> bool:
        """Whether it is written in the file with this whole path."""
        whole = file.replace("\\", "/")
        return bool(self.path) and (whole == self.path or whole.endswith(f"/{self.path}"))


@dataclass(frozen=True, eq=False)
class Stacks:
    """Calls in the order in which they begin, a caller before what it calls; ``parent`` is the caller's row, or -1."""

    start: Ints
    end: Ints
    parent: Ints
    functions: list[Function]

    @classmethod
    def of(cls, trace: Trace, lane: int) -> Stacks:
        """The calls on the thread `lane`; none where the trace has no stacks."""
        python = trace.python
        inside = np.flatnonzero((python.lane == lane) & (python.end > python.start))
        rows = inside[np.lexsort((-python.end[inside], python.start[inside]))]
        start, end = python.start[rows], python.end[rows]
        known: dict[int, Function] = {}
        functions = []
        for code in python.name[rows].tolist():
            if code not in known:
                known[code] = _function(trace.name(code))
            functions.append(known[code])
        return cls(start, end, intervals.parents(start, end), functions)

    def __len__(self) -> int:
        return len(self.start)

    def holding(self, moments: Ints) -> Mask:
        """The calls during which one of the `moments` is."""
        moments = np.sort(moments)
        return np.asarray(np.searchsorted(moments, self.end) > np.searchsorted(moments, self.start))

    def up(self, row: int) -> Iterator[int]:
        """The call `row` and what it was called from, farther and farther out."""
        while row >= 0:
            yield row
            row = int(self.parent[row])


def _function(name: str) -> Function:
    found = _WRITTEN.match(name)
    if found is None:
        return Function("", 0, "")
    return Function(
        (found["file"] or "").replace("\\", "/"), int(found["line"] or 0), found["own"] or found["built_in"]
    )
