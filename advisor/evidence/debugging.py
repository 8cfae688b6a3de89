"""What debug modes do in a step, as far as the trace shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_BACKWARD_NODE = re.compile(r"autograd::engine::evaluate_function")
# ``isnan(gradient)._is_any_true().item()`` (torch/csrc/autograd/engine.cpp); ``any`` in older versions.
_NAN_CHECK = re.compile(r"aten::(isnan|_is_any_true|any|item)$")
_ALLOCATES = re.compile(r"aten::(empty|empty_like|empty_strided|empty_permuted|new_empty|new_empty_strided|resize_)$")
# Host time of a launch that waits for nothing (5 µs is usual); what a call takes beyond it, it is blocked.
_LAUNCH_NS = 10_000


def nan_checks_s(evidence: Evidence) -> float:
    """Host seconds per step in which the backward pass looks for NaN in gradients, without the profiler's share."""
    return _inside(evidence, _NAN_CHECK, _BACKWARD_NODE)


def filled_memory_s(evidence: Evidence) -> float:
    """Host seconds per step in which fresh memory is filled, as deterministic mode has it."""
    return _inside(evidence, re.compile(r"aten::fill_$"), _ALLOCATES)


def blocked_launches_s(evidence: Evidence) -> float:
    """Seconds per step that the host is blocked in calls that launch kernels."""
    runtime, rows = evidence.trace.runtime, evidence.host.launches
    if not len(evidence.steps) or not len(runtime):
        return 0.0
    rows = rows & (assign(evidence.steps, runtime.start) >= 0) & names_like(evidence.trace, runtime.name, _is_kernel)
    taken = np.maximum(0, (runtime.end - runtime.start)[rows] - _LAUNCH_NS)
    return float(taken.sum()) / 1e9 / len(evidence.steps)


def _is_kernel(name: str) -> bool:
    return "Launch" in name and "Kernel" in name


def _inside(evidence: Evidence, inner: re.Pattern[str], outer: re.Pattern[str]) -> float:
    """Seconds per undisturbed step of the operators named `inner` that run directly inside one named `outer`."""
    trace, operators = evidence.trace, evidence.trace.operators
    if not len(evidence.steps) or not len(operators):
        return 0.0
    parent = evidence.nesting.parent
    holders = names_like(trace, operators.name, outer.match)
    rows: Mask = names_like(trace, operators.name, inner.match) & (parent >= 0) & holders[parent]
    rows &= assign(evidence.steps, operators.start) >= 0
    taken = (operators.end - operators.start)[rows].sum()
    return float(taken) / 1e9 / len(evidence.steps) / evidence.inflation
