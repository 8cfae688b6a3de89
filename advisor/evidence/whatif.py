"""The what-if model: how long would a step be if …

A change is stated as data (:class:`Change`); :func:`advisor.evidence.model.estimate` answers with an
:class:`Estimate`. The step itself is replayed (:mod:`advisor.evidence.gpu.replay`) where there is device work; on a CPU
the operators run one after the other and their times add. The loader runs beside it on the cores that are left
(:mod:`advisor.evidence.loading.pipeline`). So work that is hidden behind other work saves nothing when it is removed,
and total CPU seconds never exceed the usable cores.

The model's step is calibrated to the measured one: the profiler slows the host and not the device, so host time is
scaled until the replay without a change takes as long as the timing window says. A bare trace has no such window: the
answer lies between the host as traced and one without the profiler's estimated overhead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A prediction of more says only that what goes away was counted twice: the largest gain measured so far was 79
# (tests/benchmarks/results/accuracy.md).
_MOST = 100.0


@dataclass(frozen=True)
class Change:
    """What would be different. None (or the neutral value) leaves a thing as it was measured.

    Loader: ``workers``; ``fetch_s`` and ``fetch_cpu_s``, the new seconds (wall and CPU) to make one batch;
    ``persistent``: workers survive the epoch; ``prefetch``: batches that each worker makes ahead; ``loader``: index of
    the loader in the record (default: the one that the step waits for longest).
    Device: ``kernel_scale``: factor on kernel time, by kernel name or one per row of ``Trace.kernels``.
    CPU: ``operator_scale``: factor on an operator's self time, by operator name or one per row of
    ``Evidence.operators.rows``, outside of data loading; ``remove_host_s``: host seconds per undisturbed step that go
    away (negative: that come);
    ``cpu_scale``: factor on all computing of a CPU step, data loading aside.
    Copies: ``h2d_scale``: factor on the device time of host-to-device copies (fewer bytes, pinned memory), of all or
    one per row of ``Trace.copies``; a call that copies from pageable memory takes that much less, too.
    ``copies_async``: they no longer block the host; True for all, or rows of ``Trace.copies``. ``remove_copies``: rows
    of ``Trace.copies``, host to device, that go away, and with each the synchronization that follows it.
    ``remove_syncs``: True for all, or indices of ``Evidence.syncs``. ``remove_allocations``: the steps no longer take
    device memory from the driver, nor give it back.
    ``batch_scale``: new batch over old; the estimate is then per old batch's worth of samples.
    ``launch_scale``: factor on launches and on host time between them (compilation, graphs), but for pauses too long to
    be about launching (``gpu.replay.PREPARING_NS``); device runs only.
    """

    workers: int | None = None
    fetch_s: float | None = None
    fetch_cpu_s: float | None = None
    persistent: bool | None = None
    prefetch: int | None = None
    loader: int | None = None
    kernel_scale: Mapping[str, float] | NDArray[np.float64] | None = None
    operator_scale: Mapping[str, float] | NDArray[np.float64] | None = None
    cpu_scale: float = 1.0
    remove_host_s: float = 0.0
    launch_scale: float = 1.0
    h2d_scale: float | NDArray[np.float64] = 1.0
    copies_async: bool | NDArray[np.int64] = False
    remove_copies: NDArray[np.int64] | None = None
    remove_syncs: bool | Collection[int] = False
    remove_allocations: bool = False
    batch_scale: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """Seconds per step after the change (per old batch's worth of samples when the batch grows).

    ``low`` ≤ ``likely`` ≤ ``high`` and ``high`` / ``low`` ≤ 2; ``before`` is the step as it is (with the share of an
    epoch's start where the change is about workers), ``limits`` says what bounds the new step: "device", "host",
    "compute" (a CPU step), "loader", "CPU cores".
    """

    before: float
    low: float
    likely: float
    high: float
    limits: tuple[str, ...] = ()

    @property
    def speedup(self) -> tuple[float, float, float]:
        """(low, likely, high): old time over new, 1.0 = no change, 100 at most."""
        if not self.before:
            return 1.0, 1.0, 1.0
        low, likely, high = (min(_MOST, self.before / each) for each in (self.high, self.likely, self.low))
        return low, likely, high
