"""Threads of NumPy's OpenBLAS look for work on the cores that the model's operators want."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.loading.felt import no_core_idle
from advisor.evidence.loading.spinning import beside_operators, operators_gain_s
from advisor.fixes import sets_variable
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, Variable

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_VARIABLE = "OPENBLAS_NUM_THREADS"
# What a step that wants all cores loses to OpenBLAS's threads in the workers, over the share of all cores that these
# take. Measured on two cores with one or two workers, a model of four sizes and an encoder: 2.9, 2.5, 2.6, 2.3, 3.2,
# 2.2 and 1.7.
_LOST = 2.3
_MOST = 0.78  # of a step, or of a fetch. Two workers that made batches side by side, beside a step that slept: 0.77
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
        for found in (_beside_operators(evidence), _in_workers(evidence, record)):
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


def _beside_operators(evidence: Evidence) -> _Taken | None:
    """Of the script's own process."""
    seconds = beside_operators(evidence)
    if not seconds:
        return None
    return _Taken("while PyTorch's operators run,", seconds, Change(remove_host_s=operators_gain_s(evidence)))


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
