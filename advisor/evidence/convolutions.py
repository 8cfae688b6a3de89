"""Which part of a CPU's convolutions is depthwise, or 1x1, by the shapes and times of the window with shapes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.shapes import input_shapes
from advisor.evidence.steps import assign, step_windows
from advisor.trace.tables import Trace

FORWARD, BACKWARD = "aten::mkldnn_convolution", "aten::convolution_backward"
# Where their input's and weight's shapes stand among the arguments' (native_functions.yaml).
_INPUT = {FORWARD: 0, BACKWARD: 1}


class Kinds(NamedTuple):
    """Shares of an operator's time: convolutions with one input channel per group, and those of 1x1."""

    depthwise: float
    pointwise: float


def convolution_kinds(detail: Trace | None) -> dict[str, Kinds]:
    """The kinds of convolutions by operator name; empty without a window with shapes."""
    if detail is None or not len(detail.operators):
        return {}
    operators = detail.operators
    inside = (assign(step_windows(detail), operators.start) >= 0) & (operators.shapes >= 0)
    inside &= names_like(detail, operators.name, _INPUT.__contains__)
    ns = (operators.end - operators.start)[inside].astype(np.float64)
    pairs = np.stack((operators.name[inside], operators.shapes[inside]))
    distinct, which = np.unique(pairs, axis=1, return_inverse=True)
    total: Counter[str] = Counter()
    of_kind: dict[str, Counter[str]] = {"depthwise": Counter(), "1x1": Counter()}
    times = np.bincount(which.reshape(-1), weights=ns, minlength=distinct.shape[1])
    for (name_code, shapes), time in zip(distinct.T.tolist(), times.tolist(), strict=True):
        name = detail.name(name_code)
        kind = _kind(detail.name(shapes), _INPUT[name])
        total[name] += time
        if kind:
            of_kind[kind][name] += time
    return {
        name: Kinds(of_kind["depthwise"][name] / time, of_kind["1x1"][name] / time)
        for name, time in total.items()
        if time
    }


def _kind(shapes: str, first: int) -> str:
    found = input_shapes(shapes)[first : first + 2]
    if len(found) < 2 or len(found[0]) < 3 or len(found[1]) != len(found[0]):
        return ""
    given, weight = found
    if given[1] > 1 and weight[1] == 1:
        return "depthwise"
    return "1x1" if len(given) == 4 and {*weight[2:]} == {1} else ""
