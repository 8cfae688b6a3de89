"""Threads of NumPy's OpenBLAS that look for work while the step's operators want their cores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coverage import Coverage

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts

# While Python or NumPy runs, on one thread, OpenBLAS's have a core of their own. But each time it begins to, a product
# waits for threads whose core an operator's idle thread still holds: measured, 2.5 ms.
_HELD_S = 2.5e-3
_MOST = 0.9  # of the time in which operators run
# Of the time in which no operator runs, the share that a loader has at least whose products these are, short times
# between operators aside: Python's own.
_OF_LOADER, _SHORT_S = 0.75, 0.3e-3


def beside_operators(evidence: Evidence) -> float:
    """Seconds per step for which OpenBLAS's threads share the operators' cores, in the script's own process; 0.0 for
    next to none.

    A second in which another thread had one of two cores cost the operators a second: 0.92 to 1.17 were measured, with
    two multi-layer perceptrons, two convolutional nets, an LSTM and two encoders that took 0.6 to 72 ms alone.
    """
    record = evidence.record
    threads = (record.environment.openblas_threads or 1) if record is not None else 1
    if record is None or threads < 2 or evidence.device_is_gpu or not evidence.step_s:
        return 0.0
    cores = math.floor(record.environment.usable_cpus)
    crowded = threads - 1 - max(0, cores - record.environment.intraop_threads)
    lengths = _between_operators_s(evidence)
    in_line, making = _in_line_s(evidence)
    each = ((record.timing.openblas_s or 0.0) - in_line) / (threads - 1)
    free = float(np.maximum(0.0, lengths - _HELD_S).sum()) / max(1, len(evidence.steps))
    seconds = max(0.0, each - free) * max(0.0, crowded / (threads - 1))
    # A product lasts while the thread that called it is inside: were it all large products, so long would they take.
    products = float(lengths.sum()) / max(1, len(evidence.steps)) + making
    return seconds if seconds > products * (threads - 1) / threads else 0.0


def operators_gain_s(evidence: Evidence) -> float:
    """Seconds that the operators of an undisturbed step would take less without them."""
    rest = (1.0 - min(1.0, evidence.data_wait_share or 0.0)) * (evidence.step_s or 0.0)
    return min(beside_operators(evidence), _MOST * rest)


def gain_without_fetching_s(evidence: Evidence, facts: LoaderFacts) -> float:
    """The same where a loader in the step's process no longer computes what it does; 0.0 where others multiply, too."""
    loader = facts.record
    if loader is None or facts.workers or not loader.openblas_s:
        return 0.0
    lengths = _between_operators_s(evidence)
    between = float(lengths[lengths >= _SHORT_S].sum()) / max(1, len(evidence.steps))
    fetching = (facts.fetch_s or 0.0) * evidence.step_model.batches_per_step
    return operators_gain_s(evidence) if fetching >= _OF_LOADER * (fetching + between) else 0.0


def _in_line_s(evidence: Evidence) -> tuple[float, float]:
    """CPU seconds per step of OpenBLAS's threads while batches are made in the step's process, and of that itself."""
    records = [each.record for each in evidence.loaders if each.workers == 0 and each.record is not None]
    batches = evidence.step_model.batches_per_step
    openblas = sum(each.openblas_s or 0.0 for each in records)
    return batches * openblas, batches * sum(each.fetch_cpu_s or 0.0 for each in records)


def _between_operators_s(evidence: Evidence) -> NDArray[np.float64]:
    """Seconds of each time in the steps in which the host neither loads data nor runs an operator."""
    steps, operators = evidence.steps, evidence.trace.operators
    busy = Coverage.of(operators.start, operators.end).union(evidence.host.loader)
    gaps = Coverage.of(steps.start, steps.end).minus(busy)
    lengths: NDArray[np.float64] = (gaps.end - gaps.start) / 1e9
    return lengths
