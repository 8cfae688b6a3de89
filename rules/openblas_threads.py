"""Threads of NumPy's OpenBLAS look for work on the cores that the model's operators want."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.facts import LOADER
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, Variable

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_VARIABLE = "OPENBLAS_NUM_THREADS"
# In workers, where a step wants all cores, its own threads and the other workers' wait too: a worker's own thread took
# four to five times as long beside those of OpenBLAS. Measured on two cores with one or two workers, models of four
# sizes: 151, 155, 241, 239, 296, 279 ms a step, and 39, 35, 106, 120, 61, 64 with one thread; by this 37, 34, 102, 97,
# 65, 61. With a core that idles one worker lost nothing; two lost 40 of 52 ms to each other.
_SLOWED = 0.75  # share of the CPU time of a worker's own thread that is waiting
_MOST = 0.78  # of a step, or of a fetch
_MOST_OPERATORS = 0.9  # of the time in which they run
_IDLE = 0.1  # share of the cores: with more of them idle, nobody waits for one


class OpenblasThreads(Rule):
    """NumPy's matrix products leave threads behind that take the model's cores.

    NumPy's own build of OpenBLAS splits a product of more than 2²⁰ multiplications (100 x 100 by 100 x 100, or what
    ``np.linalg`` does with such a matrix) among one thread per core. A thread that is done does not sleep: it looks for
    the next product for 2²⁸ cycles, a tenth of a second, and takes a core meanwhile. One such product per batch, of a
    filter bank, a projection, a simulator, keeps these threads awake all the time, and the operators of a model on the
    CPU, whose threads wait for each other, run on what cores are left; in a loader's workers they take the cores of the
    other workers. What these threads take is measured in the undisturbed steps, by each thread's own clock.

    When not: most of what the script computes are large products of NumPy's, which are faster with more threads.

    Source: OpenBLAS, ``Makefile.rule`` (``THREAD_TIMEOUT``) and ``driver/others/blas_server.c``; NumPy docs, "Global
    configuration options" (number of threads used for linear algebra); both numbers as measured with NumPy 2.4.
    """

    id = "openblas-threads"
    title = "Give NumPy's matrix products one thread"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        threads = (record.environment.openblas_threads or 1) if record is not None else 1
        if record is None or threads < 2:
            return
        for where, seconds, change in (_beside_operators(evidence, record), _in_workers(evidence, record)):
            gain = Gain.of(evidence.what_if(change))
            if not gain.worth_it:
                continue
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"NumPy's OpenBLAS splits products among {threads} threads, which then look for the next one: "
                f"{where} that takes {seconds * 1e3:.1f} ms of CPU time in each step.",
                gain=gain,
                evidence={
                    "openblas_threads": threads,
                    "openblas_cpu_s": seconds,
                    "intraop_threads": record.environment.intraop_threads,
                    "usable_cpus": record.environment.usable_cpus,
                    "step_s": evidence.step_s,
                },
                parameters={"variable": not _sets_itself(record)},
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


def _beside_operators(evidence: Evidence, record: RunRecord) -> tuple[str, float, Change]:
    """Of the script's own process: for how long a step's operators shared their cores, and the step without that.

    A second in which another thread had one of two cores cost the operators a second: 0.92 to 1.17 were measured, with
    two multi-layer perceptrons, two convolutional nets, an LSTM and two encoders that took 0.6 to 72 ms alone. While
    Python or NumPy runs, on one thread, the others have a core of their own: that much is taken off.
    """
    threads, own, traced = record.environment.openblas_threads or 1, evidence.breakdown.mean_s(LOADER), 0.0
    traced = max(0.0, (evidence.trace_step_s or 0.0) - own)
    if evidence.device_is_gpu or not traced or not evidence.step_s:
        return "", 0.0, Change()
    cores = math.floor(record.environment.usable_cpus)
    crowded = threads - 1 - max(0, cores - record.environment.intraop_threads)
    operators = sum(row.self_s - row.loading_s for row in evidence.operators.rows)
    alone = max(0.0, 1.0 - operators / traced)  # share of what is left of a step besides loading
    rest = (1.0 - min(1.0, evidence.data_wait_share or 0.0)) * evidence.step_s
    each = (record.timing.openblas_s or 0.0) / (threads - 1)
    seconds = max(0.0, each - alone * rest) * max(0.0, crowded / (threads - 1))
    return "while PyTorch's operators run,", seconds, Change(remove_host_s=min(seconds, _MOST_OPERATORS * rest))


def _in_workers(evidence: Evidence, record: RunRecord) -> tuple[str, float, Change]:
    """The same of the loader's workers."""
    loader = evidence.loaders[0] if evidence.loaders else None
    step_s, timing = evidence.step_s, record.timing
    facts = loader.record if loader is not None else None
    if loader is None or facts is None or not facts.openblas_s or not step_s or not facts.fetch_cpu_s:
        return "", 0.0, Change()
    if timing.idle_cores is None or timing.idle_cores > _IDLE * record.environment.usable_cpus:
        return "", 0.0, Change()
    batches = evidence.step_model.batches_per_step
    seconds = facts.openblas_s * batches
    lost = min(_MOST, (seconds + _SLOWED * facts.fetch_cpu_s * batches) / step_s)
    if not evidence.device_is_gpu:
        return "in the loader's workers", seconds, Change(cpu_scale=1.0 - lost)
    change = Change(fetch_s=(1.0 - lost) * (facts.fetch_s or 0.0), fetch_cpu_s=(1.0 - _SLOWED) * facts.fetch_cpu_s)
    return "in the loader's workers", seconds, change


def _sets_itself(record: RunRecord) -> bool:
    """Whether the script writes the variable, so that one from outside would not last."""
    return not os.path.isfile(record.script) or _VARIABLE in text_of(record.script)
