"""The function of the user's own that computes most of a step's forward in many small operators."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from advisor.evidence.facts import Steps
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.stacks import Function, Stacks
from advisor.evidence.steps import assign
from advisor.trace.tables import Trace

# Operators of a call: a compiler has nothing to join in fewer, and writes out a Python loop of more for minutes.
_FEWEST, _MOST = 8, 400
_LEAST_SHARE = 0.6  # of the operators that make the forward


@dataclass(frozen=True)
class Repeated:
    """``file`` and ``line`` of its definition; ``calls`` a step, ``operators`` a call, ``share`` of the forward's."""

    file: str
    line: int
    name: str
    calls: float
    operators: float
    share: float


def repeated_function(detail: Trace, steps: Steps, files: Collection[str]) -> Repeated | None:
    """The user's function (in one of `files`) with the most operators to a call that a compiler can take as a whole.

    By the stacks of `detail`. None where it has none, or no function computes most of the forward.
    """
    host, stacks = Host(detail, steps), Stacks.of(detail, steps.lane)
    operators = detail.operators
    others = host.backward.union(host.optimizer).union(host.loader)
    outer = (operators.lane == steps.lane) & (Nesting(detail).parent < 0) & (assign(steps, operators.start) >= 0)
    begun = np.sort(operators.start[outer & ~others.contains(operators.start)])
    if not len(begun) or not len(stacks):
        return None
    whole = ~stacks.holding(np.concatenate((host.backward.start, host.optimizer.start, host.loader.start)))
    counted = np.searchsorted(begun, stacks.end) - np.searchsorted(begun, stacks.start)
    rows: dict[Function, list[int]] = {}
    for row in np.flatnonzero(whole & (counted > 0)).tolist():
        rows.setdefault(stacks.functions[row], []).append(row)
    best: Repeated | None = None
    for function, calls in rows.items():
        file = next((each for each in sorted(files) if function.is_of(each)), "")
        each, share = float(np.median(counted[calls])), float(counted[calls].sum()) / len(begun)
        if not file or function.name == "<module>" or not _FEWEST <= each <= _MOST or not _LEAST_SHARE <= share <= 1.0:
            continue
        if best is None or each > best.operators:
            best = Repeated(file, function.line, function.name, len(calls) / len(steps), each, share)
    return best
