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

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.findings import Scalar
from advisor.trace.tables import Copies, Kernels, Trace

_Work = TypeVar("_Work", Kernels, Copies)


def trace_figures(trace: Trace) -> dict[str, Scalar]:
    """The figures of one trace."""
    steps = trace.steps
    kernels, copies = _of_own_category(trace, trace.kernels), _of_own_category(trace, trace.copies)
    # Sums are of float64: exact up to 104 days of ns, and absurd durations of a damaged file do not overflow.
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
            "kernel_sum_ms": float((kernels.end - kernels.start).sum(dtype=np.float64)) / 1e6,
            "h2d_ms": float((copies.end - copies.start)[to_device].sum(dtype=np.float64)) / 1e6,
            "h2d_bytes": int(copies.bytes[to_device].sum(dtype=np.float64)),
            "h2d_pageable": int((copies.pageable & to_device).sum()),
        }
    if len(steps):
        figures["mean_step_ms"] = float((steps.end - steps.start).mean()) / 1e6
        span = int(steps.start.min()), int(steps.end.max())
        if len(start) and span[1] > span[0]:
            figures["kernel_busy_share_of_steps"] = busy_kernels.total_within(*span) / (span[1] - span[0])
    return figures


def _of_own_category(trace: Trace, table: _Work) -> _Work:
    """`table` without the work of MTIA devices: their events are no kernels and copies by category.

    Kineto names such a device's process "MTIA 9"; a file has the one sort of device or the other.
    """
    foreign = np.array([lane.process.startswith("MTIA") for lane in trace.lanes], bool)
    if not foreign.any() or not len(table):
        return table
    rows = ~foreign[table.lane]
    return replace(table, **{field.name: getattr(table, field.name)[rows] for field in fields(table)})


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
