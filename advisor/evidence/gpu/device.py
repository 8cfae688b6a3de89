"""What the device did, as sets of moments, and which launch call each piece of its work came from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.gpu.matrix import kind_of
from advisor.evidence.host import Host
from advisor.trace.tables import Ints, Trace


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """Kernels, copies and memsets of all streams.

    ``items_*`` list kernels first, then copies, in the order of their tables.
    """

    trace: Trace
    host: Host

    @cached_property
    def communication(self) -> Mask:
        """Rows of ``Trace.kernels`` that are collectives."""
        return names_like(self.trace, self.trace.kernels.name, lambda name: kind_of(name) == "communication")

    @cached_property
    def kernels(self) -> Coverage:
        """All kernels, collectives included."""
        return Coverage.of(self.trace.kernels.start, self.trace.kernels.end)

    @cached_property
    def compute(self) -> Coverage:
        rows = ~self.communication
        return Coverage.of(self.trace.kernels.start[rows], self.trace.kernels.end[rows])

    @cached_property
    def copies(self) -> Coverage:
        """Copies and memsets."""
        return Coverage.of(self.trace.copies.start, self.trace.copies.end)

    @cached_property
    def busy(self) -> Coverage:
        return self.kernels.union(self.copies)

    @cached_property
    def items_start(self) -> Ints:
        return np.concatenate((self.trace.kernels.start, self.trace.copies.start))

    @cached_property
    def items_end(self) -> Ints:
        return np.concatenate((self.trace.kernels.end, self.trace.copies.end))

    @cached_property
    def items_stream(self) -> Ints:
        """A number per stream of each device; of work whose stream the file does not say, one per device."""
        stream = np.concatenate((self.trace.kernels.stream, self.trace.copies.stream)).astype(np.int64)
        device = np.concatenate((self.trace.kernels.device, self.trace.copies.device)).astype(np.int64)
        return stream + 1_000_000 * device

    @cached_property
    def items_launch(self) -> Ints:
        """Row of ``Trace.runtime`` that launched each item; -1 where the file does not say."""
        correlation = np.concatenate((self.trace.kernels.correlation, self.trace.copies.correlation))
        runtime = self.trace.runtime
        rows = np.flatnonzero(self.host.launches & (runtime.correlation > 0))
        if not len(rows) or not len(correlation):
            return np.full(len(correlation), -1, np.int64)
        rows = rows[np.argsort(runtime.correlation[rows], kind="stable")]
        keys = runtime.correlation[rows]
        found = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
        return np.where((keys[found] == correlation) & (correlation > 0), rows[found], -1)
