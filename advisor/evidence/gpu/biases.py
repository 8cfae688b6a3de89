"""Biases of convolutions whose output goes into batch norm, which takes them away again: the kernels they cost.

With cuDNN the bias is added by an elementwise kernel of its own, and its gradient is a sum over the whole output
(``aten/src/ATen/native/Convolution.cpp``: ``output.add_``, ``grad_output.sum``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.kernels import launching_operators
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints

_CONVOLUTIONS = frozenset(f"aten::conv{kind}{size}d" for kind in ("", "_transpose") for size in (1, 2, 3))
_NORM = "aten::batch_norm"
_COUNTS = "aten::add_"  # batch norm counts its batches first
_FORWARD, _BACKWARD = ("aten::add_", "aten::_convolution"), ("aten::sum", "aten::convolution_backward")


@dataclass(frozen=True)
class BiasKernels:
    """``rows`` of ``Trace.kernels``; ``convolutions`` and ``seconds`` are per traced step."""

    rows: Ints
    convolutions: float
    seconds: float


def bias_kernels(steps: Steps, device: DeviceWork, nesting: Nesting) -> BiasKernels:
    """The kernels that add biases in front of batch norm, and that make their gradients."""
    trace, operators = device.trace, device.trace.operators
    launchers = launching_operators(device, nesting)[: len(trace.kernels)]
    inside = (assign(steps, trace.kernels.start) >= 0) & (launchers >= 0)
    nothing = BiasKernels(np.empty(0, np.int64), 0.0, 0.0)
    if not inside.any():
        return nothing
    into_norm = _into_norm(device, nesting)
    sequences = {int(number) for number in operators.sequence[into_norm] if number >= 0}
    rows: list[int] = []
    convolutions: set[int] = set()
    forward, backward = (_nested(nesting, launchers, *names) for names in (_FORWARD, _BACKWARD))
    for row in np.flatnonzero(inside & forward).tolist():
        top = int(nesting.outermost[launchers[row]])
        if into_norm[top]:
            rows.append(row)
            convolutions.add(top)
    if not convolutions:
        return nothing
    for row in np.flatnonzero(inside & backward).tolist():
        if _sequence(nesting, int(launchers[row])) in sequences:
            rows.append(row)
    found = np.array(sorted(rows), np.int64)
    seconds = float((trace.kernels.end[found] - trace.kernels.start[found]).sum()) / 1e9
    return BiasKernels(found, len(convolutions) / len(steps), seconds / len(steps))


def _into_norm(device: DeviceWork, nesting: Nesting) -> np.ndarray:
    """For each operator, whether it is a convolution and what its thread calls next is batch norm that learns.

    It counts its batches first: frozen batch norm does not.
    """
    operators = device.trace.operators
    code = np.zeros(len(operators), np.int8)
    for number, named in enumerate((_CONVOLUTIONS.__contains__, _NORM.__eq__, _COUNTS.__eq__), 1):
        code[names_like(device.trace, operators.name, named)] = number
    found = np.zeros(len(operators), bool)
    tops = np.flatnonzero(nesting.parent < 0)
    for lane in np.unique(operators.lane[tops]):
        rows = tops[operators.lane[tops] == lane]
        one, other, third = code[rows], np.append(code[rows[1:]], 0), np.append(code[rows[2:]], (0, 0))
        found[rows[(one == 1) & (other == 3) & (third[: len(rows)] == 2)]] = True
    return found


def _nested(nesting: Nesting, launchers: Ints, name: str, around: str) -> np.ndarray:
    """Whether each kernel was launched by an operator of that name directly in one of the other."""
    trace = nesting.trace
    named, outer = (names_like(trace, trace.operators.name, each.__eq__) for each in (name, around))
    parent = nesting.parent[launchers]
    return (launchers >= 0) & named[launchers] & (parent >= 0) & outer[parent]


def _sequence(nesting: Nesting, row: int) -> int:
    """Autograd's number of the innermost operator around `row` that has one; -1."""
    sequence = nesting.trace.operators.sequence
    while row >= 0:
        if sequence[row] >= 0:
            return int(sequence[row])
        row = int(nesting.parent[row])
    return -1
