"""The figures of ``findings.json``: plain numbers under fixed names, per trace and as means over ranks.

=============================  =========================================================================================
kernels, copies, steps         complete events: kernels; copies and memsets; step annotations
gpu_window_ms                  first device event's start to the last one's end
gpu_busy_share                 union of kernels, copies and memsets over that window
kernel_busy_ms, kernel_sum_ms  union of kernels over all streams; plain sum
h2d_ms, h2d_bytes              host-to-device copies, summed; h2d_pageable: how many of them from pageable memory
mean_step_ms                   mean duration of the step annotations, as traced
kernel_busy_share_of_steps     union of kernels inside [first step start, last step end] over it
=============================  =========================================================================================

Those describe a whole trace. A figure that a trace cannot have (device figures without device events) is left out.
"""

from __future__ import annotations

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.findings import Scalar
from advisor.trace.tables import Trace


def trace_figures(trace: Trace) -> dict[str, Scalar]:
    """The figures of one trace."""
    kernels, copies, steps = trace.kernels, trace.copies, trace.steps
    figures: dict[str, Scalar] = {"kernels": len(kernels), "copies": len(copies), "steps": len(steps)}
    start = np.concatenate((kernels.start, copies.start))
    end = np.concatenate((kernels.end, copies.end))
    busy_kernels = Coverage.of(kernels.start, kernels.end)
    if len(start):
        window = int(end.max() - start.min())
        to_device = np.array([trace.name(int(code)) == "HtoD" for code in copies.kind], bool)
        figures |= {
            "gpu_window_ms": window / 1e6,
            "gpu_busy_share": Coverage.of(start, end).total / window if window else 1.0,
            "kernel_busy_ms": busy_kernels.total / 1e6,
            "kernel_sum_ms": float((kernels.end - kernels.start).sum()) / 1e6,
            "h2d_ms": float((copies.end - copies.start)[to_device].sum()) / 1e6,
            "h2d_bytes": int(copies.bytes[to_device].sum()),
            "h2d_pageable": int((copies.pageable & to_device).sum()),
        }
    if len(steps):
        figures["mean_step_ms"] = float((steps.end - steps.start).mean()) / 1e6
        span = int(steps.start.min()), int(steps.end.max())
        if len(start) and span[1] > span[0]:
            figures["kernel_busy_share_of_steps"] = busy_kernels.total_within(*span) / (span[1] - span[0])
    return figures


def mean_figures(ranks: list[dict[str, Scalar]]) -> dict[str, Scalar]:
    """Means over ranks of the figures that are numbers; what a rank does not have is averaged over the others."""
    keys = dict.fromkeys(key for rank in ranks for key in rank)
    means: dict[str, Scalar] = {}
    for key in keys:
        values = [rank[key] for rank in ranks if isinstance(rank.get(key), int | float)]
        numbers = [float(value) for value in values if value is not None]
        if numbers:
            means[key] = sum(numbers) / len(numbers)
    return means
