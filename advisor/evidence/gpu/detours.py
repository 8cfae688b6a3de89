"""Stages of a GPU's step that the CPU computes: what is brought down to it, or worked on before it goes up.

A stage ends with a copy to the device. It begins behind a copy from the device of much the same size (a round trip:
``.cpu().numpy()``, something in NumPy, ``.to(device)``), or it is the CPU's own operators right before the copy (an
augmentation of the batch, a ``torch.where`` over it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.facts import Steps
from advisor.evidence.gpu.births import MAKERS
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints

_COMPUTES_NS = 20_000  # an operator of the CPU's that takes less is a view, or as fast as its launch would be
_LEAST_BYTES = 1024  # of a round trip: less is a number that is read, a loss or a count
_ALIKE = 8  # times: bytes down and up of a round trip differ by less, or the two have nothing to do with each other
_LAUNCH_S = 10e-6  # host seconds of an operator that launches its work instead: 5-50 us in eager PyTorch, profiled
_NAMED = 3
# What picks a batch, brings it together, converts or pins it: the loader's kind of work, of which other rules speak.
_FEEDING = frozenset(
    f"aten::{name}"
    for name in (
        "stack",
        "cat",
        "to",
        "_to_copy",
        "copy_",
        "pin_memory",
        "_pin_memory",
        "lift_fresh",
        "empty",
        "index",
        "index_select",
        "gather",
        "take",
    )
)

_NOTHING, _WORK, _DOWN, _UP, _DEVICE = range(5)


@dataclass(frozen=True)
class Detours:
    """``count`` of stages per traced step, and ``host_s``, what the host would be spared, likewise.

    ``operators``: what takes longest in them, by name. ``round_trips``: rows of ``Trace.copies`` to the device that
    only bring back what was fetched. ``sizes``: the bytes of every stage's copy to the device.
    """

    count: float
    host_s: float
    operators: tuple[str, ...]
    round_trips: Ints
    sizes: frozenset[int]


class _Stage(NamedTuple):
    work: Ints  # rows of the operators that compute
    copy: int  # row of the copy to the device
    down_ns: int | None  # since when the CPU has what it works on; None where it came from no device
    up_ns: int  # when it begins to give it back


def detours(steps: Steps, device: DeviceWork, nesting: Nesting) -> Detours | None:
    """The stages of the steps on the thread that runs them, loading and the optimizer's own work left out."""
    trace = device.trace
    stages = _stages(steps, device, nesting)
    if not stages:
        return None
    durations = trace.operators.end - trace.operators.start
    taken: dict[str, int] = {}
    host_s = 0.0
    for stage in stages:
        worked = int(durations[stage.work].sum())
        whole = worked if stage.down_ns is None else stage.up_ns - stage.down_ns
        host_s += max(0.0, whole / 1e9 - _LAUNCH_S * max(1, len(stage.work)))
        for row in stage.work.tolist():
            name = trace.name(int(trace.operators.name[row])).removeprefix("aten::")
            taken[name] = taken.get(name, 0) + int(durations[row])
    copies = np.array([stage.copy for stage in stages], np.int64)
    fetched = np.array([stage.down_ns is not None for stage in stages])
    return Detours(
        len(stages) / len(steps),
        host_s / len(steps),
        tuple(sorted(taken, key=lambda name: (-taken[name], name))[:_NAMED]),
        copies[fetched],
        frozenset(trace.copies.bytes[copies].tolist()),
    )


def _stages(steps: Steps, device: DeviceWork, nesting: Nesting) -> list[_Stage]:
    operators, copies, host = device.trace.operators, device.trace.copies, device.host
    start = operators.start
    tops = np.flatnonzero((nesting.parent < 0) & (operators.lane == steps.lane))
    tops = tops[np.argsort(start[tops], kind="stable")]
    tops = tops[~host.loader.contains(start[tops]) & ~host.optimizer.contains(start[tops])]
    begins = start[tops]
    step = assign(steps, begins)
    does, moved = _what_they_do(device, nesting)
    does = does[tops]
    stages = []
    for at in np.flatnonzero((does == _UP) & (step >= 0)).tolist():
        # What is computed for a batch begins when it is there; before that it may be about the one before.
        loaded = _loaded(host, int(steps.start[step[at]]), int(begins[at]))
        there = loaded if loaded is not None else _first_up(does, step, begins, at)
        if there is None:
            continue
        first = at
        while first and does[first - 1] in (_NOTHING, _WORK) and begins[first - 1] >= there:
            first -= 1
        within, copy, up_ns = tops[first:at], int(moved[tops[at]]), int(begins[at])
        work = within[does[first:at] == _WORK]
        down_ns = None
        if first and does[first - 1] == _DOWN and begins[first - 1] >= there:
            before = int(tops[first - 1])
            few, many = sorted((int(copies.bytes[moved[before]]), int(copies.bytes[copy])))
            if few >= _LEAST_BYTES and many <= _ALIKE * few:
                down_ns = int(operators.end[before])
        if len(work) or down_ns is not None:
            stages.append(_Stage(work, copy, down_ns, up_ns))
    return stages


def _loaded(host: Host, begin: int, until: int) -> int | None:
    """When the last batch was there that a loader gave in that time; None where none did."""
    ends = host.loader.end[(host.loader.end > begin) & (host.loader.end <= until)]
    return int(ends.max()) if len(ends) else None


def _first_up(does: Ints, step: Ints, start: Ints, at: int) -> int | None:
    """When the step's first copy to the device began, where that is another one than that of row `at`: the batch's."""
    ups = np.flatnonzero((does[:at] == _UP) & (step[:at] == step[at]))
    return int(start[ups[0]]) if len(ups) else None


def _what_they_do(device: DeviceWork, nesting: Nesting) -> tuple[Ints, Ints]:
    """Per operator that lies in no other: one of the constants above, and the row of the copy that it makes."""
    trace = device.trace
    operators, kernels = trace.operators, len(trace.kernels)
    inner = nesting.around(trace.runtime, np.arange(len(trace.runtime)))
    around = np.where(inner >= 0, nesting.outermost[inner], -1) if len(operators) else inner
    long = operators.end - operators.start >= _COMPUTES_NS
    works = long & ~names_like(trace, operators.name, (MAKERS | _FEEDING).__contains__)
    does = np.where(works, _WORK, _NOTHING)
    does[around[around >= 0]] = _DEVICE  # whatever calls the driver, an allocation too
    moved = np.full(len(operators), -1, np.int64)
    launch = device.items_launch
    launched = np.where(launch >= 0, around[launch], -1) if len(around) else np.full(len(launch), -1)
    for kind, what in (("HtoD", _UP), ("DtoH", _DOWN)):
        rows = np.flatnonzero(names_like(trace, trace.copies.kind, kind.__eq__) & (launched[kernels:] >= 0))
        does[launched[kernels:][rows]] = what
        moved[launched[kernels:][rows]] = rows
    computing = launched[:kernels]
    does[computing[computing >= 0]] = _DEVICE  # one that copies and computes, an index with a mask of the CPU's, say
    return does, moved
