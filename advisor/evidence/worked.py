"""All that some operators do: with what they call, what the backward does for them, and what part of a step it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.nesting import Nesting
from advisor.evidence.whatif import Change

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

NODE = "autograd::engine::evaluate_function"


def worked(trace: Trace, rows: list[int]) -> Mask:
    """The operators `rows`, all of one thread, those that they call, and those of their nodes in the backward."""
    operators = trace.operators
    inside = np.zeros(len(operators), np.bool_)
    for row in rows:
        inside |= (operators.start >= operators.start[row]) & (operators.end <= operators.end[row])
    inside &= operators.lane == operators.lane[rows[-1]]
    numbers = operators.sequence[inside & (operators.sequence >= 0)]
    if len(numbers):
        nodes = names_like(trace, operators.name, lambda name: name.startswith(NODE))
        nodes &= np.isin(operators.sequence, numbers)
        for row in np.flatnonzero(nodes).tolist():
            inside |= (
                (operators.start >= operators.start[row])
                & (operators.end <= operators.end[row])
                & (operators.lane == operators.lane[row])
            )
    return inside


def self_shares(trace: Trace, nesting: Nesting, over: Mask | NDArray[np.float64], inside: Mask) -> dict[str, float]:
    """Operator → share of its own time inside of `inside` (the steps, say) that the rows `over` take.

    `over` may also be which part of each row's time that is, 0 to 1.
    """
    names, taken = trace.operators.name, nesting.self_ns
    on = np.bincount(names[inside], weights=(taken * over)[inside], minlength=len(trace.names))
    everything = np.bincount(names[inside], weights=taken[inside], minlength=len(trace.names))
    return {trace.name(int(code)): float(on[code] / everything[code]) for code in np.flatnonzero(on)}


def added_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Operator → the sum of its shares in `parts`."""
    found: dict[str, float] = {}
    for each in parts:
        for name, share in each.items():
            found[name] = found.get(name, 0.0) + share
    return found


def spent_s(evidence: Evidence, shares: Mapping[str, float]) -> float:
    """Seconds of a traced step, on the device that it runs on, that these shares of the operators' own time are."""
    rows = [row for row in evidence.operators if row.name in shares]
    return sum((row.device_s if evidence.device_is_gpu else row.self_s) * shares[row.name] for row in rows)


def of_tensors(shares: Mapping[str, float]) -> dict[str, float]:
    """Those of PyTorch's own operators and of the backward's nodes: no ranges that somebody put around them."""
    return {name: share for name, share in shares.items() if name.startswith(("aten::", "autograd::"))}


def without(evidence: Evidence, shares: Mapping[str, float], comes_s: float = 0.0) -> Change:
    """The change in which these shares of the operators go: of their kernels, or, on a CPU, of their own time.

    `comes_s`: seconds of a CPU's step that come instead.
    """
    if evidence.device_is_gpu:
        kernels = {row.name: 1.0 - shares[row.operator] for row in evidence.kernels if row.operator in shares}
        return Change(kernel_scale=kernels)
    return Change(operator_scale={name: 1.0 - share for name, share in shares.items()}, remove_host_s=-comes_s)
