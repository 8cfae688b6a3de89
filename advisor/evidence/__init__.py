"""``Evidence``: facts about the step, computed once, when asked for.

One facade over a run and its trace, or over a bare trace. Every property is a small pure function of a module beside
this one; the records that they return are in :mod:`advisor.evidence.facts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from advisor.evidence.facts import (
    Aside,
    Breakdown,
    Copies,
    Flops,
    IdleGaps,
    KernelRow,
    LoaderFacts,
    MatrixWork,
    MemoryFacts,
    Operators,
    Steps,
    SyncRow,
)
from advisor.evidence.whatif import Change, Estimate
from advisor.findings import Scalar
from advisor.harness.layout import RunRecord
from advisor.run import Run
from advisor.trace.tables import Trace

__all__ = ["Change", "Estimate", "Evidence"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Facts about one run, or one trace.

    ``record`` is None for a bare trace: facts then come from the trace only. ``detail`` is the window with stacks and
    shapes (attribution, never durations). ``others`` are the traces of the other ranks.
    """

    trace: Trace
    record: RunRecord | None = None
    run: Run | None = None
    detail: Trace | None = None
    others: tuple[Trace, ...] = ()

    @classmethod
    def from_run(cls, run: Run) -> Evidence:
        """Evidence of a run; a run without a trace (over too soon) gives what its record alone can say."""

    @classmethod
    def from_trace(cls, trace: Trace, others: Iterable[Trace] = ()) -> Evidence:
        """Evidence of a trace recorded elsewhere; `others` are its fellow ranks."""

    # --- the step

    @cached_property
    def steps(self) -> Steps: ...

    @cached_property
    def step_s(self) -> float | None:
        """Mean seconds per step: the timing window's where there is a run, else the trace's; None without either."""

    @cached_property
    def trace_step_s(self) -> float | None:
        """Mean seconds per step as traced, profiler included."""

    @cached_property
    def inflation(self) -> float:
        """Step under the profiler over step without, at least 1; 1 where unknown."""

    @cached_property
    def samples_per_s(self) -> float | None: ...

    @cached_property
    def breakdown(self) -> Breakdown: ...

    @cached_property
    def idle_gaps(self) -> IdleGaps: ...

    # --- the device

    @cached_property
    def device_is_gpu(self) -> bool:
        """The steps ran device work (kernels are in the trace, or the record's model was on a GPU)."""

    @cached_property
    def device_name(self) -> str: ...

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernels in the steps by name, the most expensive first."""

    @cached_property
    def matrix(self) -> MatrixWork: ...

    @cached_property
    def copies(self) -> Copies: ...

    @cached_property
    def syncs(self) -> tuple[SyncRow, ...]:
        """Host synchronizations in the steps, the most expensive first."""

    @cached_property
    def memory(self) -> MemoryFacts: ...

    @cached_property
    def flops(self) -> Flops: ...

    # --- the host

    @cached_property
    def loaders(self) -> tuple[LoaderFacts, ...]:
        """Loaders that feed the steps, the one with the longest wait first."""

    @cached_property
    def data_wait_share(self) -> float | None:
        """Share of the step that the host is blocked in loaders; None where no loader is seen."""

    @cached_property
    def operators(self) -> Operators: ...

    @cached_property
    def aside(self) -> Aside: ...

    # --- conclusions

    @cached_property
    def bound(self) -> str:
        """input | device | host | sync | copy | communication | compute (a CPU step) | unknown."""

    @cached_property
    def verdict(self) -> str:
        """One sentence: "input-bound: 61% of the step waits for data"."""

    @cached_property
    def figures(self) -> dict[str, Scalar]:
        """The figures of ``findings.json``: means over ranks where there are several."""

    @cached_property
    def ranks(self) -> list[dict[str, Scalar]]:
        """One entry of figures per rank where there are several, else empty."""

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is less certain, in sentences."""

    def what_if(self, change: Change) -> Estimate:
        """The step after `change`: low, likely and high seconds."""
