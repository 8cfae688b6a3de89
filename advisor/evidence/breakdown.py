"""Where each step's time goes: classes that add up to the step, to the nanosecond."""

from __future__ import annotations

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import CPU_CLASSES, DEVICE_CLASSES, IDLE_CLASSES, Breakdown, IdleGaps, Steps
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.host import Host


def device_breakdown(steps: Steps, device: DeviceWork, gaps: IdleGaps) -> Breakdown:
    """What the device did in each step: kernels; collectives and copies that no kernel hides; idle time by cause."""
    ns = np.zeros((len(steps), len(DEVICE_CLASSES)), np.int64)
    exposed = len(DEVICE_CLASSES) - len(IDLE_CLASSES)
    ns[:, 0] = device.compute.within(steps.start, steps.end)
    ns[:, 1] = device.kernels.within(steps.start, steps.end) - ns[:, 0]
    ns[:, 2] = device.busy.within(steps.start, steps.end) - ns[:, 0] - ns[:, 1]
    np.add.at(ns[:, exposed:], gaps.step, gaps.parts)
    return Breakdown(True, DEVICE_CLASSES, ns, steps.end - steps.start)


def cpu_breakdown(steps: Steps, host: Host) -> Breakdown:
    """What the host did in each step of a CPU run.

    Where ranges nest, the innermost of loader, backward, forward wins over the optimizer (a closure's forward and
    backward run inside ``Optimizer.step``).
    """
    taken = Coverage.empty()
    columns = []
    for coverage in (host.loader, host.backward, host.computing, host.optimizer):
        columns.append(coverage.minus(taken).within(steps.start, steps.end))
        taken = taken.union(coverage)
    loader, backward, forward_ns, optimizer = columns
    step_ns = steps.end - steps.start
    other = step_ns - loader - backward - forward_ns - optimizer
    return Breakdown(False, CPU_CLASSES, np.stack((loader, forward_ns, backward, optimizer, other), axis=1), step_ns)
