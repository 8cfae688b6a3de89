"""More threads than cores: those that wait for each other take the cores from those that compute."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, Variable, at
from advisor.shared.threads import VARIABLE, asked, asking, by_variable, use_threads

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST = 2.0  # threads per core: with fewer, what it costs is within what a busy machine costs anyway
# Seconds by which each thread without a core of its own makes a parallel operator longer: it is started, gets the core
# from another thread, and all wait for the last one. Measured on 2 cores with 16 threads instead of 2: steps of a small
# MLP, encoder and LSTM took 7, 44 and 90 ms longer, in about 25, 150 and 160 parallel operators, 20 to 40 us a thread;
# on another processor a product 42 us, GELU 24, its backward 7, a layer norm 19 and its backward 31, an addition 19.
_EACH = 30e-6
_MOST = 0.85  # share of an operator's time that this explains at most
_PARALLEL = 0.4  # of that: a call that takes less does not wait for other threads
# The backward of a convolution is two convolutions as large as the forward one. Threads without a core spin there until
# the others have come: with 32 threads on 2 cores it took 110 times as long as the forward, with 2 threads 3 times.
# No more is predicted than 0.8 times the threads per core: the CPU seconds of that step (a small U-Net) were 7 to 14
# times as many as with 2 threads, with 8 threads 4 times.
_FORWARD, _BACKWARD, _TIMES = "aten::mkldnn_convolution", "aten::convolution_backward", 3.0
_PER_THREAD = 0.8
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# FLOP/s and core: products of 4096 rows by 16 to 32 columns ran at 7.5e9 with 16 threads on 2 cores, and 39e9 with 2.
_BOUNDED_RATE = 15e9
_OF_LISTS = re.compile(r"aten::_(fused|foreach)_")  # one call goes over many tensors, each of them in parallel
_BASIS = "30 µs per operator and thread without a core (measured on 2 cores)"


class LoaderOversubscribed(Rule):
    """The step runs its operators with many more threads than the machine has cores.

    An operator that is split among threads ends when the last of them has finished. With more threads than cores some
    have to wait for a core until another one is taken off it, while those that are done spin, on the very cores that
    the others wait for: small operators take many times as long. PyTorch starts with one thread per core; a larger
    number comes from ``torch.set_num_threads`` or ``OMP_NUM_THREADS``, often from a larger machine.

    Only the step's own threads are looked at. More loader workers than cores were measured to cost nothing once they
    have started (16 on 2 cores: 44 ms a step, 2: 47 to 60). Workers that compute with several threads each were not
    measured well enough to say (two on 2 cores: 8 and 32 threads 1.1 times as long as one, 2 threads 1.2 and 1.8).

    When not: matrix products alone are large enough (the library bounds their threads itself); the machine's cores are
    counted wrong (a container whose limit is about to change).

    Source: PyTorch docs, "CPU threading and TorchScript inference", "Tuning the number of threads"; the manual of
    libgomp, ``GOMP_SPINCOUNT`` (how long a thread spins when there are more threads than CPUs); MKL developer guide,
    ``MKL_DYNAMIC``.
    """

    id = "loader-oversubscribed"
    title = "Use no more threads than cores"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.device_is_gpu:
            return
        threads, cores = record.environment.intraop_threads, max(1, math.floor(record.environment.usable_cpus))
        if threads < _LEAST * cores:
            return
        gain = Gain.prior(evidence.what_if(_with_cores_only(evidence, threads, cores)), _BASIS)
        if not gain.worth_it:
            return
        sites = asking(evidence, record, threads)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The operators run with {threads} threads on {cores} core{'s' if cores > 1 else ''}"
            + (f", as {at(sites[-1])} asks for." if sites else f"; {VARIABLE} is {asked(record)}."),
            gain=gain,
            evidence={
                "threads": threads,
                "usable_cpus": record.environment.usable_cpus,
                "step_cpu_s": record.timing.cpu_s,
                "step_s": evidence.step_s,
            },
            site=sites[-1] if sites else None,
            parameters={
                "cores": cores,
                "recorded": threads,
                "variable": by_variable(record, threads, sites),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Variable | Advice:
        return use_threads(finding, sources)

    EXAMPLES = (
        Example(
            before="torch.set_num_threads(32)  # a big machine  # <-\n",
            after="torch.set_num_threads(2)  # a big machine\n",
            parameters={"cores": 2, "recorded": 32},
        ),
        Example(
            before='import os\nos.environ["OMP_NUM_THREADS"] = "32"  # <-\nimport torch\n',
            after='import os\nos.environ["OMP_NUM_THREADS"] = "2"\nimport torch\n',
            parameters={"cores": 2, "recorded": 32},
        ),
        Example(
            before="THREADS = 16\n\ndef main():\n    torch.set_num_threads(THREADS)  # <-\n",
            after="THREADS = 4\n\ndef main():\n    torch.set_num_threads(THREADS)\n",
            parameters={"cores": 4, "recorded": 16},
        ),
        Example(
            before="N = 32\ntorch.set_num_threads(N)  # <-\nloader = DataLoader(ds, batch_size=N)\n",
            after="N = 32\ntorch.set_num_threads(2)\nloader = DataLoader(ds, batch_size=N)\n",
            parameters={"cores": 2, "recorded": 32},
        ),
        Example(
            before="""
parser.add_argument("--threads", type=int, default=64)
args = parser.parse_args()
torch.set_num_threads(args.threads)  # <-
""",
            after="",
            parameters={"cores": 2, "recorded": 64},
            options={"--threads": "2"},
        ),
    )
    LEAVES_ALONE = (
        Example("torch.set_num_threads(4 * os.cpu_count())  # <-\n", "", {"cores": 2, "recorded": 32}),
        Example('os.environ["OMP_NUM_THREADS"] = str(32)  # <-\n', "", {"cores": 2, "recorded": 32}),
        Example("torch.set_num_threads(8)  # <-\n", "", {"cores": 2, "recorded": 32}),
    )


def _with_cores_only(evidence: Evidence, threads: int, cores: int) -> Change:
    """Parallel operators without the threads that have no core; calls too short to be parallel stay."""
    each = (threads - cores) * _EACH
    trace, operators = evidence.trace, evidence.trace.operators
    chosen = (assign(evidence.steps, operators.start) >= 0) & ~evidence.host.loader.contains(operators.start)
    chosen &= names_like(trace, operators.name, _computes if _bounded(evidence, cores) else _computes_or_multiplies)
    own = evidence.nesting.self_ns[chosen] / 1e9
    names = operators.name[chosen]
    over_lists = names_like(trace, names, _OF_LISTS.match)
    taken = np.where(over_lists, _MOST * own, np.minimum(_MOST * own, each))
    taken[own < _PARALLEL * each] = 0.0
    rows = {row.name: row for row in evidence.operators.rows if row.count > 0}
    saved: dict[str, float] = {}
    for code, seconds in zip(names.tolist(), taken.tolist(), strict=True):
        if seconds:
            name = trace.name(code)
            saved[name] = saved.get(name, 0.0) + seconds / max(1, len(evidence.steps))
    scale = {name: 1.0 - min(_MOST, seconds / rows[name].self_s) for name, seconds in saved.items() if name in rows}
    forward, backward = rows.get(_FORWARD), rows.get(_BACKWARD)
    if forward is not None and backward is not None and backward.self_s > 2 * _TIMES * forward.self_s:
        scale[_BACKWARD] = max(_TIMES * forward.self_s / backward.self_s, cores / (_PER_THREAD * threads))
    return Change(operator_scale=scale)


def _bounded(evidence: Evidence, cores: int) -> bool:
    """Whether the library of matrix products takes no more threads than there are cores (MKL_DYNAMIC; not everywhere).

    By how fast they are: threads that wait for a core leave little of the rate.
    """
    flops = evidence.flops
    seconds = sum(row.self_s for row in evidence.operators.rows if row.name in _PRODUCTS)
    return not flops.per_step or not seconds or flops.per_step / seconds > _BOUNDED_RATE * cores


def _computes(name: str) -> bool:
    return name.startswith("aten::") and name not in _PRODUCTS


def _computes_or_multiplies(name: str) -> bool:
    return name.startswith("aten::")

