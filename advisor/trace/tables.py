"""``Trace``: one profiler trace as columns.

Times are int64 nanoseconds on the trace's own clock (``base_ns`` + ts gives Unix time where the file has it);
an event occupies [start, end). Columns of one table have one length. Names and other strings are int32 codes
into ``Trace.names``; -1 where absent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class Spans:
    """Events with a duration. ``lane`` is a code into ``Trace.lanes`` (process and thread, as one)."""

    start: Ints
    end: Ints
    name: Codes
    lane: Codes
    correlation: Ints  # links a runtime call to the device work it launched; -1
    external: Ints  # links device work and runtime calls to an operator; -1

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Operators(Spans):
    """CPU operators (``cpu_op``, 2021's ``Operator`` without annotations)."""

    sequence: Ints  # autograd sequence number; -1
    shapes: Codes  # "Input Dims" as written, a code into names; -1 (detail window only)
    dtypes: Codes  # "Input type" as written; -1
    values: Codes | None = None  # "Concrete Inputs" as written (strides, paddings …); -1


@dataclass(frozen=True)
class Kernels(Spans):
    """Device kernels of all streams, sorted by start. ``device``, ``stream``: -1 where unknown."""

    device: Codes
    stream: Codes
    grid: Ints  # blocks in the grid (product of its dimensions); 0 where unknown
    block: Ints  # threads in a block
    occupancy: NDArray[np.float64]  # estimated achieved occupancy in percent; NaN


@dataclass(frozen=True)
class Copies(Spans):
    """Device copies and memsets. ``kind`` is a code into names: HtoD, DtoH, DtoD, PtoP, Memset, or other text."""

    device: Codes
    stream: Codes
    bytes: Ints  # 0 where unknown
    kind: Codes
    pageable: NDArray[np.bool_]


@dataclass(frozen=True)
class MemoryEvents:
    """``[memory]`` instants."""

    at: Ints
    bytes: Ints  # signed: allocation > 0, release < 0
    allocated: Ints  # total after the event; -1
    reserved: Ints
    device_type: Codes  # 0 CPU, 1 CUDA, as c10::DeviceType
    device: Codes


@dataclass(frozen=True)
class Lane:
    """A thread of a process, or a stream of a device, as the file names it."""

    pid: str
    tid: str
    process: str = ""
    thread: str = ""


@dataclass(frozen=True)
class Trace:
    """One trace file, decoded.

    ``steps`` are the CPU-side ``ProfilerStep#N`` annotations in order of time (each once);
    ``annotations`` all other user annotations of the CPU; ``device_annotations`` their GPU-side repeats.
    """

    path: str
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    operators: Operators
    annotations: Spans
    steps: Spans
    kernels: Kernels
    copies: Copies
    runtime: Spans  # cuda_runtime, cuda_driver, hip…: calls on the host
    device_annotations: Spans
    overheads: Spans
    python: Spans  # python_function: with stacks only
    syncs: Spans  # cuda_sync
    memory: MemoryEvents
    flows: dict[str, int]  # category → how many flow events (fwdbwd, ac2g): counted, not kept
    devices: tuple[dict[str, object], ...]  # deviceProperties as written
    distributed: dict[str, object]  # distributedInfo as written
    base_ns: int
    host: str = ""
    warnings: tuple[str, ...] = ()

    def name(self, code: int) -> str:
        return self.names[code] if code >= 0 else ""
