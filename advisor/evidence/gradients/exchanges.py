"""Gradients that the ranks of a job exchange more often than an optimizer takes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.host import select
from advisor.trace.tables import Spans

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_STEP = re.compile(r"^Optimizer\.step#")
_REDUCE = re.compile(r"^c10d::all_?reduce", re.IGNORECASE)
_REDUCING = re.compile(r"^(gloo|nccl|mpi|ucc|xccl):\w*all_?reduce", re.IGNORECASE)
_KERNEL = re.compile(r"all_?reduce", re.IGNORECASE)
# What DDP's reducer does in a backward besides: dividing, copying into buckets and out of them.
_REDUCER = re.compile(r"^c10d::all_?reduce|^torch(::|\.)distributed(::|\.)(ddp\.)?reducer", re.IGNORECASE)
# Its statistics travel in every forward and backward, whatever becomes of the gradients.
_OTHERS = re.compile(r"SyncBatchNorm")


@dataclass(frozen=True)
class Exchanges:
    """``per_step``: backward passes that exchange gradients, for each step of the optimizer: two at least.

    ``host_s``: seconds of a traced step in which a CPU does nothing but that, with what is not needed of them gone
    where ``per_step`` are one; ``kernel_scale``: what is left of each kernel then.
    """

    per_step: int
    host_s: float
    kernel_scale: NDArray[np.float64] | None


def exchanges(evidence: Evidence) -> Exchanges | None:
    """What the backwards of a step exchange before the last one; None where they do not, or there is but one."""
    trace, steps = evidence.trace, evidence.steps
    if not len(steps) or _rows(evidence, trace.operators, _OTHERS.search).any():
        return None
    forwards = np.sort(trace.annotations.start[_rows(evidence, trace.annotations, _FORWARD.match)])
    reduced = np.sort(trace.operators.start[_rows(evidence, trace.operators, _REDUCE.match)])
    stepped = int(_rows(evidence, trace.annotations, _STEP.match).sum())
    if not len(forwards) or not stepped:
        return None
    # Those after which, before the next one, gradients travel: no evaluation, and no forward under `no_sync`.
    after = np.searchsorted(reduced, np.append(forwards, np.iinfo(np.int64).max))
    per_step = int((np.diff(after) > 0).sum()) // stepped
    if per_step < 2:
        return None
    needless = 1.0 - 1.0 / per_step
    if evidence.device_is_gpu:
        kernels = names_like(trace, trace.kernels.name, _KERNEL.search) & evidence.device.communication
        scale = np.where(kernels, 1.0 - needless, 1.0)
        return Exchanges(per_step, 0.0, scale) if kernels.any() else None
    operators = trace.operators
    ours = np.isin(operators.lane, evidence.host.lanes)
    travelling = select(trace.annotations, _rows(evidence, trace.annotations, _REDUCING.match))
    alone = travelling.minus(select(operators, ours))
    alone = alone.union(select(operators, ours & _rows(evidence, operators, _REDUCER.match)))
    seconds = float(alone.within(steps.start, steps.end).sum()) / 1e9 / len(steps)
    return Exchanges(per_step, needless * seconds, None)


def _rows(evidence: Evidence, table: Spans, matches: Callable[[str], object]) -> Mask:
    """Rows within the steps."""
    steps = evidence.steps
    inside = (table.start >= steps.start[0]) & (table.start < steps.end[-1])
    return np.asarray(names_like(evidence.trace, table.name, matches) & inside)
