"""Operators on the host: self time per step, with shapes from the detail window."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import distinct, pairs
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import OperatorRow, Operators, Steps
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign, step_windows
from advisor.trace.tables import Ints, Trace

_SHAPES_KEPT = 3


def operator_rows(
    trace: Trace, steps: Steps, nesting: Nesting, launchers: Ints, loader: Coverage, detail: Trace | None
) -> Operators:
    """Operators that start inside the steps, by name, the most self time first.

    `launchers`: operator row of each kernel and copy (:func:`advisor.evidence.gpu.kernels.launching_operators`);
    `loader`: when the host loads data.
    """
    if not len(steps) or not len(trace.operators):
        return Operators((), None)
    inside = assign(steps, trace.operators.start) >= 0
    unique, inverse, counts = distinct(trace.operators.name[inside], len(trace.names))
    self_ns = nesting.self_ns[inside]
    own = np.bincount(inverse, weights=self_ns, minlength=len(unique))
    in_loader = loader.contains(trace.operators.start[inside])
    loading = np.bincount(inverse, weights=np.where(in_loader, self_ns, 0), minlength=len(unique))
    device_ns = _device_time(trace, launchers, unique, steps)
    per_step = {trace.name(int(code)): int(count) / len(steps) for code, count in zip(unique, counts, strict=True)}
    shapes, unmatched = _join(per_step, detail)
    rows = [
        OperatorRow(
            name=(name := trace.name(int(unique[i]))),
            count=int(counts[i]) / len(steps),
            self_s=float(own[i]) / 1e9 / len(steps),
            share=float(own[i]) / steps.total_ns,
            shapes=shapes.get(name, ()),
            device_s=float(device_ns[i]) / 1e9 / len(steps),
            loading_s=float(loading[i]) / 1e9 / len(steps),
        )
        for i in np.argsort(-own, kind="stable")
    ]
    return Operators(tuple(rows), unmatched)


def _device_time(trace: Trace, launchers: Ints, unique: Ints, steps: Steps) -> NDArray[np.float64]:
    """ns of kernels in the steps, by the name of the operator that launched them."""
    kernels = trace.kernels
    rows = launchers[: len(kernels)]
    chosen = (rows >= 0) & (assign(steps, kernels.start) >= 0)
    if not chosen.any() or not len(unique):
        return np.zeros(len(unique))
    names = trace.operators.name[rows[chosen]]
    at = np.searchsorted(unique, names)
    known = (at < len(unique)) & (unique[np.minimum(at, len(unique) - 1)] == names)
    ns = (kernels.end - kernels.start)[chosen][known].astype(np.float64)
    return np.asarray(np.bincount(at[known], weights=ns, minlength=len(unique)), np.float64)


def _join(per_step: dict[str, float], detail: Trace | None) -> tuple[dict[str, tuple[str, ...]], float | None]:
    """Shapes by operator name, and the share of operator calls that the two windows do not have in common.

    The n-th call of a name in a step of one window is the n-th of that name in a step of the other.
    """
    if detail is None or not len(detail.operators):
        return {}, None
    steps = step_windows(detail)
    inside = assign(steps, detail.operators.start) >= 0
    names, codes = detail.operators.name[inside], detail.operators.shapes[inside]
    found: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for name_code, shape_code, number in zip(*pairs(names, codes), strict=True):
        name = detail.name(int(name_code))
        counts[name] += int(number)
        if shape_code >= 0:
            found.setdefault(name, Counter())[detail.name(int(shape_code))] += int(number)
    shapes = {name: tuple(s for s, _ in counter.most_common(_SHAPES_KEPT)) for name, counter in found.items()}
    detail_per_step = {name: count / len(steps) for name, count in counts.items()}
    everything = per_step.keys() | detail_per_step.keys()
    differing = sum(abs(per_step.get(n, 0.0) - detail_per_step.get(n, 0.0)) for n in everything)
    larger = max(sum(per_step.values()), sum(detail_per_step.values()))
    return shapes, min(1.0, differing / larger) if larger else None
