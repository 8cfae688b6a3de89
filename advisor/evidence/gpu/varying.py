"""Whether the steps compute on other sizes from one to the next, by the grids of their kernels.

A run notes when the shapes of what its models are given change; of their first dimension it does not, because a smaller
last batch is no change worth the name. More than two sizes are one, and so are tensors inside of a model whose first
dimension follows the data (the regions that a detector finds). A kernel's grid follows the size of what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.host import Host
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

_FEW = 2  # the usual step, and that of a smaller last batch


def sizes_vary(evidence: Evidence, counts: Callable[[str], bool], *, forward: bool = False) -> bool:
    """Whether the steps of the profiled windows differ, in more than two ways, in the grids of kernels that count.

    `counts` is asked by a kernel's name. With `forward`: of those only that a model's forward launches.
    """
    windows = [evidence.trace] + ([evidence.detail] if evidence.detail is not None else [])
    return len({each for window in windows for each in _grids(window, counts, forward)}) > _FEW


def _grids(trace: Trace, counts: Callable[[str], bool], forward: bool) -> Iterator[frozenset[tuple[str, int]]]:
    """Of each step that launches any of those kernels their names with their grids, each pair once."""
    steps, kernels = step_windows(trace), trace.kernels
    host = Host(trace, steps)
    launch = DeviceWork(trace, host).items_launch[: len(kernels)]
    rows = np.flatnonzero((launch >= 0) & (kernels.grid > 0) & names_like(trace, kernels.name, counts))
    # A kernel is of the step that launches it: the device may be a step behind.
    moment = trace.runtime.start[launch[rows]]
    step = np.where(host.forward.contains(moment), assign(steps, moment), -1) if forward else assign(steps, moment)
    seen = np.unique(np.stack((step, kernels.name[rows], kernels.grid[rows])), axis=1)  # in order of the steps
    bounds = np.searchsorted(seen[0], np.arange(len(steps) + 1))
    for begin, end in pairwise(bounds.tolist()):
        names, grids = seen[1:, begin:end]
        if len(names):
            yield frozenset(zip(map(trace.name, names.tolist()), grids.tolist(), strict=True))
