"""What the host did, as sets of moments: loading data, synchronizing, launching, running operators.

Only threads that matter to the step are looked at: the one that runs the steps, and those that launch device work or
run the backward pass. A pin-memory thread, say, is not the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import Steps
from advisor.harness import layout
from advisor.trace.tables import Ints, Spans, Trace

LOADER = re.compile(r"^enumerate\(DataLoader\)#|^enumerate\(DataPipe\)#|DataLoader.*__next__$")
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#|^## optimizer ##$")
_MANY_CLOSURES = re.compile(r"^Optimizer\.step#LBFGS\.")
_BACKWARD = re.compile(r"^## backward ##$")
_FORWARD = re.compile(r"^DistributedDataParallel\.forward$|^## forward ##$")
_BACKWARD_OPERATOR = re.compile(r"^autograd::engine::evaluate_function")

# Calls in which the host waits for the device.
_SYNC = re.compile(
    r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|^hipMemcpyWithStream$|^(cuda|hip)Memcpy$|^cuMemcpy[DH]to[DH]_v2$"
)
# Calls that synchronize the device as a side effect (CUDA C++ programming guide, "Implicit Synchronization").
_ALLOCATION = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|FreeHost|HostMalloc|HostFree|HostRegister)$|^cuMem(Alloc|Free)"
)
_LAUNCH = re.compile(
    r"^(cuda|hip)(Launch\w*Kernel\w*|Ext(Module)?Launch\w*|ModuleLaunchKernel|GraphLaunch\w*|MemcpyAsync|MemsetAsync"
    r"|Memcpy\w*Async|Memset\w*|MemcpyWithStream|Memcpy)$|^cu(LaunchKernel\w*|GraphLaunch|Memcpy\w*Async\w*|Memset\w*)$"
)

_CAPTURE = re.compile(r"^(cuda|hip|cu)StreamBeginCapture"), re.compile(r"^(cuda|hip|cu)StreamEndCapture")

# Launches that follow each other faster than this come from a host that does nothing but launch: eager PyTorch spends
# 5-50 µs on an operator, and the profiler adds to that (measured on launch-bound public traces: 36-90 µs a launch).
LAUNCH_PERIOD_NS = 100_000


def select(spans: Spans, mask: Mask) -> Coverage:
    """The moments that the rows of `mask` occupy."""
    return Coverage.of(spans.start[mask], spans.end[mask])


def is_launch(name: str) -> bool:
    """A runtime or driver call that puts work on a device's queue."""
    return _LAUNCH.match(name) is not None


def is_sync(name: str) -> bool:
    """A runtime or driver call in which the host waits for the device."""
    return _SYNC.match(name) is not None


@dataclass(frozen=True, eq=False)
class Host:
    """The host's side of a trace."""

    trace: Trace
    steps: Steps

    @cached_property
    def lanes(self) -> Ints:
        """Threads that matter (codes into ``Trace.lanes``)."""
        backward = names_like(self.trace, self.trace.operators.name, _BACKWARD_OPERATOR.match)
        found = [self.trace.runtime.lane[self.launches], self.trace.operators.lane[backward]]
        if self.steps.lane >= 0:
            found.append(np.array([self.steps.lane], np.int32))
        return np.unique(np.concatenate(found)).astype(np.int64)

    @cached_property
    def launches(self) -> Mask:
        """Rows of ``Trace.runtime`` that put work on a device's queue."""
        return names_like(self.trace, self.trace.runtime.name, is_launch)

    @cached_property
    def sync_rows(self) -> Mask:
        """Rows of ``Trace.runtime`` in which the host waits for the device.

        A copy to pageable memory is one of them, whatever it is called: it "will return only once the copy has
        completed" (CUDA driver API, "API synchronization behavior").
        """
        rows = names_like(self.trace, self.trace.runtime.name, is_sync) | self._reading_rows
        if not len(self.drained):
            return rows
        drained = self.drained.within(self.trace.runtime.start, self.trace.runtime.end) > 0
        return np.asarray(rows & ~drained, np.bool_)

    @cached_property
    def drained(self) -> Coverage:
        """While the harness waits for the device at the end of its window: no wait of the script's."""
        return self._annotated(layout.DRAIN_RANGE)

    @cached_property
    def _reading_rows(self) -> Mask:
        copies, runtime = self.trace.copies, self.trace.runtime
        chosen = copies.pageable & names_like(self.trace, copies.kind, "DtoH".__eq__) & (copies.correlation > 0)
        return np.asarray(np.isin(runtime.correlation, copies.correlation[chosen]) & self.launches)

    @cached_property
    def allocation_rows(self) -> Mask:
        """Rows of ``Trace.runtime`` that take or give back device memory: they wait for the device as a side effect."""
        return names_like(self.trace, self.trace.runtime.name, _ALLOCATION.match)

    @cached_property
    def capturing(self) -> Coverage:
        """While the launches of a thread are recorded into a graph: what is recorded does not run."""
        runtime = self.trace.runtime
        begun, ended = (names_like(self.trace, runtime.name, pattern.match) for pattern in _CAPTURE)
        starts, ends = runtime.start[begun], np.sort(runtime.end[ended])
        after = np.searchsorted(ends, starts)
        closed = after < len(ends)
        return Coverage.of(starts[closed], ends[after[closed]])

    @cached_property
    def loader_rows(self) -> Mask:
        """Rows of ``Trace.annotations`` in which a loader makes or awaits a batch."""
        return names_like(self.trace, self.trace.annotations.name, lambda n: bool(LOADER.search(n)))

    @cached_property
    def loader(self) -> Coverage:
        return select(self.trace.annotations, self.loader_rows)

    @cached_property
    def sync(self) -> Coverage:
        rows = self.sync_rows | self.allocation_rows
        return select(self.trace.runtime, rows & np.isin(self.trace.runtime.lane, self.lanes))

    @cached_property
    def forward(self) -> Coverage:
        return self._annotated(layout.FORWARD_RANGE, _FORWARD)

    @cached_property
    def backward(self) -> Coverage:
        rows = names_like(self.trace, self.trace.operators.name, _BACKWARD_OPERATOR.match)
        return self._annotated(layout.BACKWARD_RANGE, _BACKWARD).union(select(self.trace.operators, rows))

    @cached_property
    def optimizer(self) -> Coverage:
        return self.stepping(names_like(self.trace, self.trace.annotations.name, _OPTIMIZER.match))

    def stepping(self, rows: Mask) -> Coverage:
        """The moments of these rows of ``Trace.annotations``, optimizers' steps, without what their closures do.

        A step calls its closure first, which ends with the backward, or where the trace says so (Lightning calls what
        the user wants done between backward and step); but for one that calls it many times.
        """
        annotations = self.trace.annotations
        closing = rows & ~names_like(self.trace, annotations.name, _MANY_CLOSURES.match)
        start, end = annotations.start.copy(), annotations.end
        for closed in filter(len, (self.backward, self._annotated(layout.CLOSURE_RANGE))):
            last = np.searchsorted(closed.start, end) - 1
            inside = closing & (last >= 0) & (closed.start[last] >= annotations.start)
            start[inside] = np.clip(closed.end[last[inside]], start[inside], end[inside])
        # The harness waits for the device in a hook of the last step that it measures, which the step's range includes.
        return Coverage.of(start[rows], end[rows]).minus(self.drained)

    @cached_property
    def operators(self) -> Coverage:
        """Any operator running on a thread that matters."""
        return select(self.trace.operators, np.isin(self.trace.operators.lane, self.lanes))

    @cached_property
    def computing(self) -> Coverage:
        """The forward pass in a CPU step, with the operators outside of the module's own range that the backward works
        on (the loss); without any forward range all that are not loading, backward or optimizer.
        """
        forward = self.forward.union(self.differentiated)
        if len(self.forward):
            return forward
        return forward.union(self.operators.minus(self.loader.union(self.backward).union(self.optimizer)))

    @cached_property
    def own_work(self) -> Coverage:
        """Loading, forward, backward and optimizer: all of a CPU step but what the breakdown calls other."""
        return self.loader.union(self.backward).union(self.optimizer).union(self.computing)

    @cached_property
    def differentiated(self) -> Coverage:
        """Operators whose result the backward works on: the forward pass, and the loss.

        Without any backward in the trace all operators that autograd numbered.
        """
        rows = self.graph_rows
        if not len(rows):
            numbered = np.isin(self.trace.operators.lane, self.lanes) & (self.trace.operators.sequence >= 0)
            return select(self.trace.operators, numbered)
        return Coverage.of(self.trace.operators.start[rows], self.trace.operators.end[rows])

    @cached_property
    def graph_rows(self) -> Ints:
        """Rows of ``Trace.operators`` that made a node of the graph which the backward then works on.

        With gradients on every operator is written with the number that the next node will get, whether it makes one
        or not: of those with one number the last made it.
        """
        operators = self.trace.operators
        nodes = names_like(self.trace, operators.name, lambda name: name.startswith("autograd::engine::"))
        within = Coverage.of(operators.start[nodes], operators.end[nodes])
        forward = np.flatnonzero(
            np.isin(operators.lane, self.lanes) & (operators.sequence >= 0) & ~within.contains(operators.start)
        )
        forward = forward[np.isin(operators.sequence[forward], operators.sequence[nodes])]
        order = forward[np.lexsort((operators.start[forward], operators.sequence[forward], operators.lane[forward]))]
        numbers, lanes = operators.sequence[order], operators.lane[order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = (numbers[1:] != numbers[:-1]) | (lanes[1:] != lanes[:-1])
        return order[last]

    @cached_property
    def launching(self) -> Coverage:
        """Operators that launch device work, and stretches of launches less than LAUNCH_PERIOD_NS apart."""
        parts = []
        runtime, operators = self.trace.runtime, self.trace.operators
        for lane in self.lanes:
            calls = self.launches & (runtime.lane == lane)
            starts, ends = runtime.start[calls], runtime.end[calls]
            order = np.argsort(starts)
            starts, ends = starts[order], ends[order]
            close = np.diff(starts) < LAUNCH_PERIOD_NS
            parts.append(Coverage.of(starts, ends))
            parts.append(Coverage.of(starts[:-1][close], starts[1:][close]))
            tops = Coverage.of(operators.start[operators.lane == lane], operators.end[operators.lane == lane])
            busy = np.searchsorted(starts, tops.end) > np.searchsorted(starts, tops.start)
            parts.append(Coverage(tops.start[busy], tops.end[busy]))
        if not parts:
            return Coverage.empty()
        return Coverage.of(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))

    @cached_property
    def seen(self) -> tuple[int, int]:
        """From the first to the last event of these threads: only in between can "nothing runs" mean Python."""
        spans: list[Spans] = [self.trace.operators, self.trace.runtime, self.trace.annotations, self.trace.steps]
        rows = [(s.start[m], s.end[m]) for s in spans if (m := np.isin(s.lane, self.lanes)).any()]
        if not rows:
            return 0, 0
        return min(int(start.min()) for start, _ in rows), max(int(end.max()) for _, end in rows)

    def _annotated(self, name: str, pattern: re.Pattern[str] | None = None) -> Coverage:
        def named(found: str) -> bool:
            return found == name or (pattern is not None and pattern.match(found) is not None)

        return select(self.trace.annotations, names_like(self.trace, self.trace.annotations.name, named))
