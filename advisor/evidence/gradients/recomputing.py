"""Forwards that run once more in the backward: activation checkpointing at work, as the trace has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import NODE, Part, kernels_left
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from advisor.evidence import Evidence
    from advisor.trace.intervals import Ints

# What only a forward calls: the derivatives of these are other operators.
_ONLY_FORWARD = re.compile(
    r"^aten::(linear|conv[123]d|scaled_dot_product_attention|layer_norm|group_norm|batch_norm|rms_norm|lstm|gru)$"
)
_OPERATOR = re.compile(r"^aten::")


@dataclass(frozen=True)
class Recomputed:
    """``share`` of the forward's layers that the backward calls again; ``seconds`` of the host per traced step that it
    takes; ``kernel_scale``: what is left of each row of ``Trace.kernels`` without it."""

    share: float
    seconds: float
    kernel_scale: NDArray[np.float64]


def recomputed_forward(evidence: Evidence) -> Recomputed | None:
    """The layers that run again inside of autograd's nodes; None where none do."""
    trace, operators, steps = evidence.trace, evidence.trace.operators, evidence.steps
    if not len(steps):
        return None
    layers = names_like(trace, operators.name, _ONLY_FORWARD.match) & (assign(steps, operators.start) >= 0)
    rows = np.flatnonzero(layers)
    inside = evidence.host.backward.contains(operators.start[rows])
    first, again = rows[~inside], rows[inside & (operators.sequence[rows] >= 0)]  # no derivative is recorded
    if not len(first) or not len(again):
        return None
    nodes = np.flatnonzero(names_like(trace, operators.name, lambda name: name.startswith(NODE)))
    nodes = nodes[np.argsort(operators.start[nodes], kind="stable")]
    seconds, left = 0.0, np.ones(len(trace.kernels))
    recorded = names_like(trace, operators.name, _OPERATOR.match) & (operators.sequence >= 0)
    for lane in np.unique(operators.lane[again]).tolist():
        there, at = again[operators.lane[again] == lane], nodes[operators.lane[nodes] == lane]
        if not len(at):
            continue
        # The node that began last: a block is computed again before the first of its own nodes begins.
        around = np.searchsorted(operators.start[at], operators.start[there], side="right") - 1
        here = np.flatnonzero((operators.lane == lane) & recorded)
        parts: list[Part] = []
        for node in np.unique(around[around >= 0]).tolist():
            members = there[around == node]
            parts.append((*_span(evidence, int(at[node]), int(operators.start[members].min()), here, at), 1.0))
        seconds += sum(end - start for start, end, _ in parts) / 1e9 / len(steps)
        left = np.minimum(left, kernels_left(evidence, parts, lane))
    return Recomputed(min(1.0, len(again) / len(first)), seconds, left) if seconds else None


def _span(evidence: Evidence, node: int, layer: int, recorded: Ints, nodes: Ints) -> tuple[int, int]:
    """Begin and end (ns) of the part of `node` that computes something again, with a layer that begins at `layer`.

    That is what autograd has `recorded` in it (operators of its thread): its own derivative is not. The norm that a
    block begins with, written out, comes before its first layer. Where the node differentiates what it has computed at
    once, other `nodes` begin inside of it, in their order.
    """
    operators = evidence.trace.operators
    nested = nodes[(operators.start[nodes] >= layer) & (operators.end[nodes] <= operators.end[node])]
    end = int(operators.start[nested[0]] if len(nested) else operators.end[node])
    inside = recorded[(operators.start[recorded] >= operators.start[node]) & (operators.end[recorded] <= end)]
    return (int(operators.start[inside].min()), int(operators.end[inside].max())) if len(inside) else (layer, layer)
