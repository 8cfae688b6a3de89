"""Which part of a CPU's convolutions is depthwise, by the shapes and times of the window that records shapes."""

from __future__ import annotations

import ast

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign, step_windows
from advisor.trace.tables import Trace

FORWARD, BACKWARD = "aten::mkldnn_convolution", "aten::convolution_backward"
# Where their input's and weight's shapes stand among the arguments' (native_functions.yaml).
_INPUT = {FORWARD: 0, BACKWARD: 1}


def depthwise_shares(detail: Trace | None) -> dict[str, float]:
    """Operator name → share of its time that goes to convolutions with one input channel per group.

    Without a window with shapes nothing is known, and empty.
    """
    if detail is None or not len(detail.operators):
        return {}
    operators = detail.operators
    inside = (assign(step_windows(detail), operators.start) >= 0) & (operators.shapes >= 0)
    inside &= names_like(detail, operators.name, _INPUT.__contains__)
    ns = (operators.end - operators.start)[inside].astype(np.float64)
    pairs = np.stack((operators.name[inside], operators.shapes[inside]))
    distinct, which = np.unique(pairs, axis=1, return_inverse=True)
    total: dict[str, float] = {}
    depthwise: dict[str, float] = {}
    times = np.bincount(which.reshape(-1), weights=ns, minlength=distinct.shape[1])
    for (name_code, shapes), time in zip(distinct.T.tolist(), times.tolist(), strict=True):
        name = detail.name(name_code)
        total[name] = total.get(name, 0.0) + time
        if _is_depthwise(detail.name(shapes), _INPUT[name]):
            depthwise[name] = depthwise.get(name, 0.0) + time
    return {name: depthwise.get(name, 0.0) / time for name, time in total.items() if time}


def _is_depthwise(shapes: str, first: int) -> bool:
    try:
        given, weight = ast.literal_eval(shapes)[first : first + 2]
        return len(given) > 2 and given[1] > 1 and weight[1] == 1
    except (ValueError, SyntaxError, TypeError, IndexError):
        return False
