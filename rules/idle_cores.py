"""The script asks for fewer threads than there are cores, and the others have nothing to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, Variable, at
from advisor.shared.threads import UNSET, VARIABLE, asked, asking, by_variable, use_threads

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_IDLE = 0.4  # of the cores beyond its threads have to be idle: else something else computes there, workers, say
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "lstm", "gru", "scaled_dot_product", "_flash_attention")
# Seconds of a call from which on it is split among threads as a large one is, and up to which it is not at all: torch
# splits from 32,768 numbers on (at::internal::GRAIN_SIZE), which take some ten microseconds.
_LARGE, _SMALL = 200e-6, 20e-6
_BASIS = "operators of this kind with as many threads as cores, measured at the end of the run"


class IdleCores(Rule):
    """The operators run with fewer threads than the script may use cores, because it asks for so few.

    ``torch.set_num_threads(1)``, or ``OMP_NUM_THREADS=1``, is often left over: from a search for a bug, from a machine
    that ran many jobs at a time, from ``torchrun``, which sets the variable where nobody else has. PyTorch by itself
    starts one thread for each physical core. Reported where the script or its environment asks for the number, the
    cores beyond it were idle while the steps were timed, and operators were measured to be faster with them.

    When not: other programs are meant to have the cores (several runs at a time are faster with one thread each);
    results have to be the same to the last bit as with one thread.

    Source: PyTorch docs, "CPU threading and TorchScript inference", "Tuning the number of threads"; PyTorch
    performance tuning guide, "Utilize Non-Uniform Memory Access (NUMA) Controls", "Utilize OpenMP".
    """

    id = "idle-cores"
    title = "Let the operators use all cores"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.device_is_gpu or not record.environment.more_threads:
            return
        threads, cores = record.environment.intraop_threads, max(1, math.floor(record.environment.usable_cpus))
        sites = asking(evidence, record, threads)
        if threads >= cores or (not sites and asked(record) == UNSET):
            return  # torch's own choice: one for each physical core
        idle = record.timing.idle_cores
        if idle is None or idle < _IDLE * (cores - threads):
            return
        gain = Gain.prior(evidence.what_if(Change(operator_scale=_with_all(evidence, record))), _BASIS)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The operators run with {threads} thread{'s' if threads > 1 else ''} on {cores} cores, of which "
            f"{idle:.1f} have nothing to do"
            + (f", as {at(sites[-1])} asks for." if sites else f"; {VARIABLE} is {asked(record)}."),
            gain=gain,
            evidence={
                "threads": threads,
                "usable_cpus": record.environment.usable_cpus,
                "idle_cores": idle,
                "step_s": evidence.step_s,
            },
            site=sites[-1] if sites else None,
            parameters={"cores": cores, "recorded": threads, "variable": by_variable(record, threads, sites)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Variable | Advice:
        return use_threads(finding, sources)

    EXAMPLES = (
        Example(
            before="import torch\ntorch.set_num_threads(1)  # <-\n",
            after="import torch\ntorch.set_num_threads(8)\n",
            parameters={"cores": 8, "recorded": 1},
        ),
        Example(
            before='import os\nos.environ["OMP_NUM_THREADS"] = "1"  # <-\nimport torch\n',
            after='import os\nos.environ["OMP_NUM_THREADS"] = "4"\nimport torch\n',
            parameters={"cores": 4, "recorded": 1},
        ),
    )
    LEAVES_ALONE = (
        Example("torch.set_num_threads(max(1, os.cpu_count() // 4))  # <-\n", "", {"cores": 8, "recorded": 2}),
    )


def _with_all(evidence: Evidence, record: RunRecord) -> dict[str, float]:
    """Factor on each operator's own time with a thread for each core: those that are long enough to be split."""
    faster = record.environment.more_threads
    scale: dict[str, float] = {}
    for row in evidence.operators:
        name = row.name.removeprefix("aten::")
        kind = "product" if name.startswith(_PRODUCTS) else "convolution" if "convolution" in name else "elementwise"
        times, each_s = faster.get(kind, 1.0), row.self_s / row.count if row.count else 0.0
        if times <= 1.0 or each_s <= _SMALL:
            continue
        part = min(1.0, math.log(each_s / _SMALL) / math.log(_LARGE / _SMALL))
        scale[row.name] = 1.0 - part * (1.0 - 1.0 / times)
    return scale
