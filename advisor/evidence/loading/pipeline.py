"""The loader beside the step: how long a step is when so many workers make batches on so many cores.

With no worker a step is the fetch and then the rest. With workers the slowest of three limits rules in the steady
state: the rest of the step; the workers' throughput (fetch / workers); and the CPU seconds, for which the cores are too
few.

The last one needs care. A worker that computes takes a core. While a free one is left that costs nothing. Otherwise
it shares a core with a thread of the step's own. The operators' threads wait for each other at the end of every
parallel region, and a thread that is woken for the next one waits until the worker's time slice is over, so the whole
step comes nearly to a stand for as long as the worker computes: a worker's CPU second costs the step one second, as if
it had been fetched in line. (If the scheduler could spread the loss evenly it would be 1/cores of that: the bound that
no schedule beats.) That holds until the step is through at its slower pace; where making a batch takes longer than
that, the step waits, and the workers compute side by side on all cores.
"""

from __future__ import annotations

from dataclasses import dataclass

CROWDED = "CPU cores"  # what rules a step whose workers compete with it for them

# What a batch costs on top when it comes from another process: the worker copies it to shared memory and shares caches
# and memory with the step; the main process maps it and is woken.
WORKER_OVERHEAD = 1.1
# The same where it shares cores with others that compute: their caches, too. 1.05 to 1.4 in four loaders on two cores.
CROWDED_OVERHEAD = 1.25
RECEIVE_S = 0.0005

# Between the perfect schedule (0) and one core shared all the time (1); at the far end switching costs something too.
SHARING = (0.6, 1.0, 1.15)

# So many times as long does a step take while workers keep the cores busy that its threads need. Measured on two cores,
# without workers and with one or two that compute all the time: 3.2 and 19 ms, 6.2 and 29, 2.7 and 20, 3.7 and 24
# (small convolutional and linear nets), 18 and 65 (a larger one); a step that is one LSTM 3 and 70.
SLOWER = 6.0

# From this many busy threads beyond one on, the step counts as one parallel region after another; below, in proportion.
BARRIERS = 0.5

# Computing workers slow the step down even on cores of their own: memory bandwidth, caches, clock. (Public V100 traces
# of one training with 0 and 4 workers: the host needs 105 ms a step with none and 138 ms with four.)
NEIGHBOURS = (0.0, 0.04, 0.12)

# Starting a worker: fork copies page tables (10-50 ms); spawn and forkserver import torch again (1-3 s, side by side).
FORK_S = 0.03
SPAWN_S = 2.0


@dataclass(frozen=True)
class Period:
    """Seconds per step (optimistic, likely, pessimistic) and what rules the likely one."""

    low: float
    likely: float
    high: float
    limit: str  # "step" | "loader" | CROWDED


def period(
    rest_s: float,
    *,
    workers: int,
    fetch_s: float,
    fetch_cpu_s: float,
    main_threads: float,
    cores: float | None,
    batches: float = 1.0,
) -> Period:
    """The step with `workers` processes making batches.

    `rest_s`: the step when data is always there; `fetch_s`, `fetch_cpu_s`: wall and CPU seconds to make the `batches`
    of a step; `main_threads`: threads that the rest keeps busy on average; `cores`: usable ones, None where unknown.
    """
    if workers <= 0:
        return Period(rest_s + fetch_s, rest_s + fetch_s, rest_s + fetch_s, "step")
    # A worker has one thread: what several threads computed in line takes it that much longer.
    cpu = fetch_cpu_s * WORKER_OVERHEAD
    wall = max(fetch_s, cpu)
    throughput = wall / workers
    computing = min(1.0, cpu / wall) if wall > 0 else 0.0
    base = rest_s + RECEIVE_S * batches
    if cores is None:
        even = shared = 0.0
    else:
        busy = min(main_threads, cores)
        even = (busy * rest_s + cpu) / cores
        # That comes on top, for several threads.
        excess = _excess(fetch_cpu_s * CROWDED_OVERHEAD, workers, cores - busy, rest_s)
        barriers = _barriers(busy)
        # While the step stands still for want of data, the workers that are left have all cores to themselves.
        sharing = min(excess, (SLOWER - 1.0) * rest_s)
        alone = (excess - sharing) / min(workers, cores)
        shared = even + barriers * max(0.0, rest_s + sharing + alone - even)
    bounds = [
        max(base * (1 + slower * computing), throughput, even + part * max(0.0, shared - even))
        for slower, part in zip(NEIGHBOURS, SHARING, strict=True)
    ]
    limit = "step"
    if bounds[1] > base * (1 + NEIGHBOURS[1]) * 1.001:
        limit = "loader" if throughput >= bounds[1] * 0.999 else CROWDED
    return Period(bounds[0], bounds[1], bounds[2], limit)


def undisturbed_s(computing_s: float, *, workers: int, worker_cpu_s: float, threads: float, cores: float) -> float:
    """What a step would compute for without the workers beside it, when with them it does for `computing_s`.

    `worker_cpu_s`: CPU seconds per step that the workers take; `threads`: those that the step's operators run on.
    The inverse of what :func:`period` does to it.
    """
    busy = min(threads, cores)
    barriers = _barriers(busy)

    def with_workers(alone_s: float) -> float:
        excess = _excess(worker_cpu_s, workers, cores - busy, alone_s)
        return alone_s + barriers * min(excess, (SLOWER - 1.0) * alone_s)

    if with_workers(computing_s) <= computing_s:
        return computing_s
    low, high = computing_s / SLOWER, computing_s
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if with_workers(middle) > computing_s else (middle, high)
    return (low + high) / 2


def _excess(cpu_s: float, workers: int, free: float, rest_s: float) -> float:
    """CPU seconds of the workers that the cores which the step leaves free cannot take while it runs."""
    return 0.0 if workers <= free else max(0.0, cpu_s - free * rest_s)


def _barriers(busy: float) -> float:
    """How much of a step with so many busy threads waits for the slowest of them: 0 to 1."""
    return min(1.0, max(0.0, busy - 1.0) / BARRIERS)


def start_s(workers: int, fetch_s: float, context: str) -> float:
    """Seconds to start an epoch's workers and wait for the first batch; 0 without workers."""
    if workers <= 0:
        return 0.0
    process = SPAWN_S if context in ("spawn", "forkserver") else FORK_S * workers
    return process + fetch_s
