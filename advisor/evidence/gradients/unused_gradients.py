"""The part of the backward pass whose gradients no optimizer takes: what it does after the last one that is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.trace.intervals import Ints

if TYPE_CHECKING:
    from advisor.evidence import Evidence

# How autograd's engine names a node that has come to a parameter.
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class UnusedBackward:
    """Seconds of the host per traced step, and the rows of ``Trace.kernels`` that are launched in them."""

    seconds: float
    kernels: Ints


def unused_backward(evidence: Evidence) -> UnusedBackward | None:
    """What each backward pass does after the last gradient that an optimizer takes; None where it cannot be told.

    The gradients of a pass are done one by one; the record knows how many there are, and after how many of them the
    rest is for nothing.
    """
    record, steps = evidence.record, evidence.steps
    operators, kernels = evidence.trace.operators, evidence.trace.kernels
    if record is None or not record.gradients or record.gradients_needed >= record.gradients or not len(steps):
        return None
    step_of = assign(steps, operators.start)
    done = np.flatnonzero(names_like(evidence.trace, operators.name, GRADIENT.__eq__) & (step_of >= 0))
    done = done[np.argsort(operators.start[done], kind="stable")]
    lanes, counts = np.unique(operators.lane[done]), np.bincount(step_of[done], minlength=len(steps))
    if len(lanes) != 1 or not counts.all() or (counts % record.gradients).any():
        return None
    passes = done.reshape(-1, record.gradients)
    begin, end = operators.end[passes[:, record.gradients_needed - 1]], operators.end[passes[:, -1]]
    launch, runtime = evidence.device.items_launch[: len(kernels)], evidence.trace.runtime
    known = np.flatnonzero(launch >= 0)
    moment = runtime.start[launch[known]]
    within = np.searchsorted(begin, moment, side="right") - 1
    inside = (within >= 0) & (moment < end[np.maximum(within, 0)]) & (runtime.lane[launch[known]] == lanes[0])
    return UnusedBackward(float((end - begin).sum()) / 1e9 / len(steps), known[inside])
