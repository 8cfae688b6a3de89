"""What ``Evidence`` answers with: frozen records of facts. Seconds are floats, sizes bytes, shares in [0, 1].

Nothing is computed here. Trace timestamps (``start``, ``end``) are int64 nanoseconds on the trace's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from advisor.harness.layout import CallSite, Site
from advisor.harness.layout import Loader as LoaderRecord
from advisor.trace.tables import Ints

# Classes of a step's time, in the order in which they are shown.
KERNEL = "kernel"
EXPOSED_COMMUNICATION = "exposed_communication"
EXPOSED_COPY = "exposed_copy"
IDLE_LOADER = "idle_loader"
IDLE_SYNC = "idle_sync"
IDLE_LAUNCH = "idle_launch"
IDLE_OPERATORS = "idle_operators"
IDLE_PYTHON = "idle_python"
IDLE_QUEUED = "idle_queued"
IDLE_UNKNOWN = "idle_unknown"
DEVICE_CLASSES = (
    KERNEL,
    EXPOSED_COMMUNICATION,
    EXPOSED_COPY,
    IDLE_LOADER,
    IDLE_SYNC,
    IDLE_LAUNCH,
    IDLE_OPERATORS,
    IDLE_PYTHON,
    IDLE_QUEUED,
    IDLE_UNKNOWN,
)
IDLE_CLASSES = DEVICE_CLASSES[3:]

LOADER = "loader"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
OTHER = "other"
CPU_CLASSES = (LOADER, FORWARD, BACKWARD, OPTIMIZER, OTHER)

LABELS: Mapping[str, str] = {
    KERNEL: "kernels",
    EXPOSED_COMMUNICATION: "exposed communication",
    EXPOSED_COPY: "exposed copies",
    IDLE_LOADER: "idle: waiting for data",
    IDLE_SYNC: "idle: host synchronization",
    IDLE_LAUNCH: "idle: launch-bound",
    IDLE_OPERATORS: "idle: CPU operators",
    IDLE_PYTHON: "idle: Python",
    IDLE_QUEUED: "idle: between queued kernels",
    IDLE_UNKNOWN: "idle: unknown",
    LOADER: "data loading",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    OTHER: "other",
}


@dataclass(frozen=True)
class Steps:
    """Step windows [start, end) in ns, in order of time, clipped so that they do not overlap.

    Where the trace has no step annotations, ``boundary`` says what else their ends are taken from, or one window over
    all events stands in: then ``pseudo`` is True. ``behind``: these are the windows of a device far behind the host.
    ``lane`` is the thread that ran them (a code into ``Trace.lanes``; -1).
    """

    start: Ints
    end: Ints
    number: Ints  # N of ProfilerStep#N; counted from 0 where there is none
    lane: int = -1
    pseudo: bool = False
    boundary: str = ""
    behind: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def durations_s(self) -> NDArray[np.float64]:
        """Seconds of each step."""
        return (self.end - self.start) / 1e9

    @property
    def total_ns(self) -> int:
        return int((self.end - self.start).sum())


@dataclass(frozen=True)
class Breakdown:
    """Where each step's time goes. ``ns`` is int64 [steps, classes]; each row sums to the step exactly.

    ``on_device`` says which classes these are: DEVICE_CLASSES (what the device did) or CPU_CLASSES.
    """

    on_device: bool
    classes: tuple[str, ...]
    ns: Ints
    step_ns: Ints

    @property
    def shares(self) -> dict[str, float]:
        """Class → share of all steps' time: never negative, summing to 1 (empty where there are no steps)."""
        return exact_shares(self.classes, self.ns.sum(axis=0))

    def share(self, name: str) -> float:
        """Share of `name`; 0 for a class that this breakdown does not have."""
        return self.shares.get(name, 0.0)

    def step_shares(self, step: int) -> dict[str, float]:
        """The shares of one step, by its index."""
        return exact_shares(self.classes, self.ns[step])

    def mean_s(self, name: str) -> float:
        """Mean seconds per step of one class, as traced."""
        if name not in self.classes or not len(self.step_ns):
            return 0.0
        return float(self.ns[:, self.classes.index(name)].mean()) / 1e9

    @property
    def idle_share(self) -> float:
        """Share of the steps in which the device did nothing; 0 for a CPU breakdown."""
        return sum(share for name, share in self.shares.items() if name in IDLE_CLASSES)


def exact_shares(classes: tuple[str, ...], ns: Ints) -> dict[str, float]:
    """Shares of integer parts that add up to exactly 1.0 with ``sum``, in any order.

    Multiples of 2**-50 below 1 add without rounding; the largest share takes what is lost by cutting the others there.
    """
    total = int(ns.sum())
    if total <= 0:
        return {}
    units = {name: (int(part) << 50) // total for name, part in zip(classes, ns, strict=True)}
    units[max(units, key=units.__getitem__)] += (1 << 50) - sum(units.values())
    return {name: unit / (1 << 50) for name, unit in units.items()}


@dataclass(frozen=True)
class IdleGaps:
    """Each gap of the device inside the steps: [start, end) in ns, its step, and what the host did meanwhile.

    ``parts`` is int64 ns [gaps, IDLE_CLASSES], rows summing to the gap; ``cause`` the index of the largest part.
    """

    start: Ints
    end: Ints
    step: Ints
    parts: Ints
    cause: Ints

    def __len__(self) -> int:
        return len(self.start)

    def cause_name(self, gap: int) -> str:
        return IDLE_CLASSES[int(self.cause[gap])]


@dataclass(frozen=True)
class KernelRow:
    """Kernels of one name. ``share`` is of the summed time of all kernels in the steps."""

    name: str
    count: int  # in all steps
    total_s: float  # in all steps
    per_step_s: float
    share: float
    operator: str  # the operator that launched most of them; "" where unknown
    matrix: str  # on | off | unknown: matrix work by class; "" for other work
    kind: str  # gemm | conv | attention | communication | other


@dataclass(frozen=True)
class MatrixWork:
    """Seconds of matrix work (gemm, convolution, attention) in the steps, on Tensor/matrix cores or not."""

    on_s: float
    off_s: float
    unknown_s: float
    kernel_s: float  # summed time of all kernels in the steps

    @property
    def total_s(self) -> float:
        return self.on_s + self.off_s + self.unknown_s

    @property
    def share_low(self) -> float | None:
        """Least share of matrix work on the matrix cores; None without matrix work."""
        return self.on_s / self.total_s if self.total_s > 0 else None

    @property
    def share_high(self) -> float | None:
        return (self.on_s + self.unknown_s) / self.total_s if self.total_s > 0 else None

    @property
    def eligible_share(self) -> float:
        """Share of kernel time that is matrix work off the matrix cores."""
        return self.off_s / self.kernel_s if self.kernel_s > 0 else 0.0


@dataclass(frozen=True)
class CopyRow:
    """Copies of one kind ("HtoD", "DtoH", "DtoD", "Memset"…), pageable or not. Figures are per step (mean)."""

    kind: str
    pageable: bool
    count: float
    bytes: float
    total_s: float  # device time
    exposed_s: float  # of it, while no kernel ran
    blocking_s: float  # host time blocked by these copies: in the call and in the synchronization that follows
    waiting_s: float  # of it, while the device is busy with earlier work before the copy begins
    blocking: bool  # most of them block the host
    sites: tuple[CallSite, ...] = ()


@dataclass(frozen=True)
class Copies:
    rows: tuple[CopyRow, ...]

    def of(self, kind: str) -> tuple[CopyRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)

    @property
    def h2d_s(self) -> float:
        """Device seconds per step of host-to-device copies."""
        return sum(row.total_s for row in self.of("HtoD"))

    @property
    def h2d_exposed_s(self) -> float:
        return sum(row.exposed_s for row in self.of("HtoD"))

    @property
    def h2d_bytes(self) -> float:
        """Bytes per step."""
        return sum(row.bytes for row in self.of("HtoD"))


@dataclass(frozen=True)
class LoaderFacts:
    """A loader that feeds the steps. ``record`` is None where only a trace is known.

    ``wait_s`` is per step: the host blocked in ``__next__`` (timing window where there is a run, else the trace);
    ``wait_share`` of the step of the same source. ``fetch_s`` makes one batch; None where it cannot be known (from
    a trace alone it is known only for a loader without workers). ``single_s`` makes one on one thread, as a worker
    does, and ``fetch_cpu_s`` is the processor's time of that where it is known.
    """

    record: LoaderRecord | None
    index: int  # in the record's list; -1
    workers: int | None  # None: unknown; from a trace alone 0 or None
    wait_s: float
    wait_share: float
    exposed_share: float  # share of the step in which device (or CPU) work really stood still for it
    fetch_s: float | None
    fetch_cpu_s: float | None
    single_s: float | None
    start_s: float | None  # per epoch: starting the iterator
    batches: int | None  # per epoch
    site: Site | None


@dataclass(frozen=True)
class MemoryFacts:
    """Peak device memory of the timing window (or of the trace's events); None where unknown."""

    peak: int | None
    reserved: int | None
    capacity: int | None
    on_device: bool

    @property
    def share(self) -> float | None:
        """Peak over capacity."""
        return self.peak / self.capacity if self.peak is not None and self.capacity else None


@dataclass(frozen=True)
class SyncRow:
    """Host synchronizations of one kind: a runtime call inside one operator (``aten::item``, "" for none).

    ``index`` names the row for ``Change.remove_syncs``. ``wait_s`` is the part of the call during which the device was
    still busy; figures are per step (mean).
    """

    index: int
    call: str  # cudaStreamSynchronize …
    operator: str  # outermost operator around the call
    direction: str  # HtoD | DtoH …: of the copy right before it on its thread, or that the call itself is; "" for none
    count: float
    total_s: float
    wait_s: float
    cause: str  # item | copy | explicit | other: why the host synchronizes
    sites: tuple[CallSite, ...] = ()


@dataclass(frozen=True)
class Flops:
    """Floating-point operations per step from the detail window's shapes, and what they say.

    ``by_dtype`` sums to ``per_step``. ``peak`` is FLOP/s of the device for the work's dtypes (weighted), None where
    the device is not in the table; ``mfu`` = achieved / peak over the step; ``uncounted``: matrix operators per step
    without usable shapes (``achieved`` and ``mfu`` are None when these are more than a few).
    """

    per_step: float
    by_dtype: Mapping[str, float]
    achieved: float | None  # FLOP/s over the step
    peak: float | None
    peak_dtype: str
    mfu: float | None
    uncounted: float


@dataclass(frozen=True)
class OperatorRow:
    """CPU operators of one name: self time (children excluded), per step. ``shapes``: the most frequent of the detail
    window, as written there."""

    name: str
    count: float  # per step
    self_s: float  # per step
    share: float  # of the step, self time
    shapes: tuple[str, ...] = ()
    device_s: float = 0.0  # per step: kernels launched by it
    loading_s: float = 0.0  # the part of self_s inside the loader's own ranges


@dataclass(frozen=True)
class Operators:
    """``unmatched``: operator calls of the profile window that the detail window does not have, or the reverse, as a
    share of the larger; None without a detail window."""

    rows: tuple[OperatorRow, ...]
    unmatched: float | None

    def row(self, name: str) -> OperatorRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def __iter__(self) -> Iterator[OperatorRow]:
        return iter(self.rows)


@dataclass(frozen=True)
class Aside:
    """Wall time that is not steps, by cause (evaluation, checkpoint, compile …). ``share`` is of ``wall_s``."""

    wall_s: float | None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return min(1.0, sum(self.seconds.values()) / self.wall_s) if self.wall_s else 0.0
