"""Kernels by name, with the operator that launched them, and how much matrix work runs on the matrix cores."""

from __future__ import annotations

import re

import numpy as np

from advisor.evidence.coded import distinct, names_like, pairs
from advisor.evidence.facts import KernelRow, MatrixWork, Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.matrix import OFF, ON, UNKNOWN, cores_of, kind_of
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints, Trace

_COMPILED_KERNEL = re.compile(r"triton_(poi|red|per|tem|for|mm)_")  # Inductor's names; other Triton kernels have none
_COMPILED_SHARE = 0.05  # of all kernels: a compiled helper inside an eager model makes one in hundreds
_GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch")


def launching_operators(device: DeviceWork, nesting: Nesting) -> Ints:
    """Row of the operator that launched each item (kernels, then copies): by launch call, else by external id; -1."""
    trace = device.trace
    launch = device.items_launch
    found = np.full(len(launch), -1, np.int64)
    if len(trace.runtime):
        known = np.flatnonzero(launch >= 0)
        found[known] = nesting.around(trace.runtime, launch[known])
    external = np.concatenate((trace.kernels.external, trace.copies.external))
    rows = np.flatnonzero(trace.operators.external > 0)
    if not len(rows):
        return found
    rows = rows[np.argsort(trace.operators.external[rows], kind="stable")]
    keys = trace.operators.external[rows]
    at = np.minimum(np.searchsorted(keys, external), len(keys) - 1)
    by_id = np.where((keys[at] == external) & (external > 0), rows[at], -1)
    return np.where(found >= 0, found, by_id)


def kernel_rows(trace: Trace, steps: Steps, operators: Ints) -> tuple[KernelRow, ...]:
    """Kernels that start inside the steps, by name, the most expensive first. `operators`: as launching_operators."""
    inside = assign(steps, trace.kernels.start) >= 0
    names = trace.kernels.name[inside]
    ns = (trace.kernels.end - trace.kernels.start)[inside]
    launchers = operators[: len(trace.kernels)][inside]
    launcher_names = np.where(launchers >= 0, trace.operators.name[launchers] if len(trace.operators) else -1, -1)
    unique, inverse, counts = distinct(names, len(trace.names))
    # float64: exact up to 104 days of ns, and no overflow where a damaged file has absurd durations.
    totals = np.bincount(inverse, weights=ns, minlength=len(unique))
    everything = float(totals.sum())
    launched_by = _most_frequent(launcher_names, inverse, len(unique))
    rows = []
    for i in np.argsort(-totals, kind="stable"):
        name = trace.name(int(unique[i]))
        total = float(totals[i]) / 1e9
        rows.append(
            KernelRow(
                name=name,
                count=int(counts[i]),
                total_s=total,
                per_step_s=total / len(steps),
                share=float(totals[i]) / everything if everything else 0.0,
                operator=trace.name(int(launched_by[i])),
                matrix=cores_of(name),
                kind=kind_of(name),
            )
        )
    return tuple(rows)


def is_compiled(trace: Trace) -> bool:
    """Whether Inductor has made the model's kernels, or captured graphs are replayed."""
    if names_like(trace, trace.runtime.name, _GRAPH_LAUNCH.match).any():
        return True
    inductors = names_like(trace, trace.kernels.name, _COMPILED_KERNEL.match)
    return bool(inductors.sum() > _COMPILED_SHARE * len(inductors))


def matrix_work(rows: tuple[KernelRow, ...]) -> MatrixWork:
    """Seconds of matrix work by class."""
    seconds = {answer: sum(row.total_s for row in rows if row.matrix == answer) for answer in (ON, OFF, UNKNOWN)}
    return MatrixWork(seconds[ON], seconds[OFF], seconds[UNKNOWN], sum(row.total_s for row in rows))


def _most_frequent(codes: Ints, group: Ints, groups: int) -> Ints:
    """The most frequent of the `codes` of each group (of several the smallest); -1 where none is known."""
    found = np.full(groups, -1, np.int64)
    known = codes >= 0
    owners, owned, counts = pairs(group[known], codes[known])
    order = np.lexsort((owned, -counts, owners))
    groups_found, first = np.unique(owners[order], return_index=True)
    found[groups_found] = owned[order][first]
    return found
