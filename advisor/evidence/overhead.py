"""What the profiler itself costs the host, estimated from the trace alone.

A run is timed without the profiler; a trace recorded elsewhere knows only the disturbed step. The device's durations
are true in it, the host's are not, and how much the host really needs decides whether faster kernels would help.
"""

from __future__ import annotations

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints, Trace

# Seconds that recording costs per operator, more with its shapes, and per Python function of a stack: measured with
# torch 2.15 on a loop of views (0.80 us each bare, 1.24 recorded, 1.85 with shapes; 0.3 per Python function).
OPERATOR_S, SHAPES_S, PYTHON_S = 0.45e-6, 0.6e-6, 0.3e-6
# Operators that compute nothing, and what they take inside their own range in an undisturbed run (measured as above:
# 0.3 to 0.5 us a view, 1 to 2.5 us an allocation). Profilers of 2021, and those that collect stacks in C++, make it
# 10 to 30 us; every other operator pays that too.
_IDLE_OPERATORS = {"aten::view": 1.0e-6, "aten::as_strided": 1.0e-6, "aten::empty": 3.0e-6}
_LEAST_SAMPLES = 20
# The rest is certainly the script's own, whatever the samples say.
_MOST_SHARE = 0.6


def profiler_overhead(trace: Trace, steps: Steps, parent: Ints, lanes: Ints) -> float:
    """Seconds per step that the profiler takes on the threads `lanes`; `parent` as in ``Nesting``."""
    operators = trace.operators
    if not len(steps) or not len(operators):
        return 0.0
    inside = (assign(steps, operators.start) >= 0) & np.isin(operators.lane, lanes)
    each = OPERATOR_S + (SHAPES_S if (operators.shapes >= 0).any() else 0.0)
    each += _excess(trace, parent, inside)
    functions = int(((assign(steps, trace.python.start) >= 0) & np.isin(trace.python.lane, lanes)).sum())
    seconds = (int(inside.sum()) * each + functions * PYTHON_S) / len(steps)
    return min(seconds, _MOST_SHARE * steps.total_ns / 1e9 / len(steps))


def _excess(trace: Trace, parent: Ints, inside: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Mean seconds that operators without work of their own take beyond what they take undisturbed."""
    operators = trace.operators
    leaf = inside.copy()
    leaf[parent[parent >= 0]] = False
    seconds, expected = [np.empty(0)], 0.0
    for name, usual in _IDLE_OPERATORS.items():
        rows = leaf & names_like(trace, operators.name, name.__eq__)
        seconds.append((operators.end - operators.start)[rows] / 1e9)
        expected += usual * int(rows.sum())
    taken = np.concatenate(seconds)
    if len(taken) < _LEAST_SAMPLES:
        return 0.0
    # An allocation that asks the driver takes a thousand times as long: no part of the rule.
    usual_ones = taken[taken <= 10 * np.median(taken)]
    return max(0.0, float(usual_ones.mean()) - expected / len(taken))
