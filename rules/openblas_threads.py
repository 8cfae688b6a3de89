"""Threads of NumPy's OpenBLAS look for work on the cores that the model's operators want."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence import Change
from advisor.evidence.coverage import Coverage
from advisor.evidence.felt import no_core_idle
from advisor.fixes import sets_variable
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, Variable

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_VARIABLE = "OPENBLAS_NUM_THREADS"
# While Python or NumPy runs, on one thread, OpenBLAS's have a core of their own. But each time it begins to, a product
# waits for threads whose core an operator's idle thread still holds: measured, 2.5 ms.
_HELD_S = 2.5e-3
# What a step that wants all cores loses to OpenBLAS's threads in the workers, over the share of all cores that these
# take. Measured on two cores with one or two workers, a model of four sizes and an encoder: 2.9, 2.5, 2.6, 2.3, 3.2,
# 2.2 and 1.7.
_LOST = 2.3
_MOST = 0.78  # of a step, or of a fetch. Two workers that made batches side by side, beside a step that slept: 0.77
_MOST_OPERATORS = 0.9  # of the time in which they run
_LEAST_SHARE = 0.1  # of the workers' CPU time


@dataclass(frozen=True)
class _Taken:
    """Seconds per step that OpenBLAS's threads take somewhere, in words, and what would be different without them."""

    where: str
    seconds: float
    without: Change


class OpenblasThreads(Rule):
    """NumPy's matrix products leave threads behind that take the model's cores.

    NumPy's own build of OpenBLAS splits a product of more than 2²⁰ multiplications (100 x 100 by 100 x 100, or what
    ``np.linalg`` does with such a matrix) among one thread per core. A thread that is done does not sleep: it looks for
    the next product for 2²⁸ cycles, a tenth of a second, and takes a core meanwhile. One such product per batch, of a
    filter bank, a projection, a simulator, keeps these threads awake all the time, and the operators of a model on the
    CPU, whose threads wait for each other, run on what cores are left; in a loader's workers they take the cores of the
    other workers. What these threads take is measured in the undisturbed steps, by each thread's own clock.

    When not: most of what the script computes are large products of NumPy's, which are faster with more threads. It is
    not reported where these could lose as much as is gained.

    Source: OpenBLAS, ``Makefile.rule`` (``THREAD_TIMEOUT``) and ``driver/others/blas_server.c``; NumPy docs, "Global
    configuration options" (number of threads used for linear algebra). 2²⁰ and 2²⁸ were measured with NumPy 2.4.
    """

    id = "openblas-threads"
    title = "Give NumPy's matrix products one thread"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        threads = (record.environment.openblas_threads or 1) if record is not None else 1
        if record is None or threads < 2:
            return
        for found in (_beside_operators(evidence, record), _in_workers(evidence, record)):
            gain = Gain.of(evidence.what_if(found.without)) if found is not None else None
            if found is None or gain is None or not gain.worth_it:
                continue
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"NumPy's OpenBLAS splits products among {threads} threads, which then look for the next one: "
                f"{found.where} that takes {found.seconds * 1e3:.1f} ms of CPU time in each step.",
                gain=gain,
                evidence={
                    "openblas_threads": threads,
                    "openblas_cpu_s": found.seconds,
                    "intraop_threads": record.environment.intraop_threads,
                    "usable_cpus": record.environment.usable_cpus,
                    "step_s": evidence.step_s,
                },
                parameters={"variable": not sets_variable(record, _VARIABLE)},
            )
            return

    def fix(self, finding: Finding, sources: Sources) -> Variable | Advice:
        if finding.parameters.get("variable"):
            return Variable({_VARIABLE: "1"})
        return Advice(
            f'Set {_VARIABLE} to "1" before NumPy is imported; large products of NumPy\'s own get slower.',
            "the script sets the variable itself",
        )

    EXAMPLES = (
        Example("features = frames @ filters  # <-\n", "", {"variable": False}, advice="before NumPy is imported"),
    )
    LEAVES_ALONE = (Example("features = frames @ filters\n", "", {"variable": True}),)


def _beside_operators(evidence: Evidence, record: RunRecord) -> _Taken | None:
    """Of the script's own process: for how long a step's operators shared their cores, and the step without that.

    A second in which another thread had one of two cores cost the operators a second: 0.92 to 1.17 were measured, with
    two multi-layer perceptrons, two convolutional nets, an LSTM and two encoders that took 0.6 to 72 ms alone.
    """
    threads = record.environment.openblas_threads or 1
    if evidence.device_is_gpu or not evidence.step_s:
        return None
    cores = math.floor(record.environment.usable_cpus)
    crowded = threads - 1 - max(0, cores - record.environment.intraop_threads)
    rest = (1.0 - min(1.0, evidence.data_wait_share or 0.0)) * evidence.step_s
    lengths = _between_operators_s(evidence)
    in_line, making = _in_line_s(evidence)
    each = ((record.timing.openblas_s or 0.0) - in_line) / (threads - 1)
    free = float(np.maximum(0.0, lengths - _HELD_S).sum()) / max(1, len(evidence.steps))
    seconds = max(0.0, each - free) * max(0.0, crowded / (threads - 1))
    # A product lasts while the thread that called it is inside: were it all large products, so long would they take.
    products = float(lengths.sum()) / max(1, len(evidence.steps)) + making
    if seconds <= products * (threads - 1) / threads:
        return None
    change = Change(remove_host_s=min(seconds, _MOST_OPERATORS * rest))
    return _Taken("while PyTorch's operators run,", seconds, change)


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


def _in_workers(evidence: Evidence, record: RunRecord) -> _Taken | None:
    """The same of the loader's workers."""
    loader = evidence.loaders[0] if evidence.loaders else None
    step_s = evidence.step_s
    facts = loader.record if loader is not None else None
    if loader is None or not loader.workers or facts is None or not step_s:
        return None
    if not facts.openblas_s or not facts.fetch_cpu_s:
        return None
    if not no_core_idle(record):
        return None
    batches = evidence.step_model.batches_per_step
    seconds = facts.openblas_s * batches
    if evidence.device_is_gpu:
        share = facts.openblas_s / (facts.openblas_s + facts.fetch_cpu_s)
        if share < _LEAST_SHARE:
            return None
        change = Change(fetch_s=(1.0 - min(_MOST, share)) * (facts.fetch_s or 0.0))
    else:
        lost = _LOST * seconds / record.environment.usable_cpus / step_s
        change = Change(cpu_scale=1.0 - min(_MOST, lost))
    return _Taken("in the loader's workers", seconds, change)
