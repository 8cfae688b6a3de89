"""What ``nn.TransformerEncoder`` would take if it skipped the padding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.steps import assign
from advisor.harness.layout import ENCODER_RANGE, Encoder

if TYPE_CHECKING:
    from advisor.evidence import Evidence

# The fast path packs the tokens for its linear layers and unpacks them again for attention, which it computes over the
# padded length, without the fused kernel that the other path may have: so many times what its FLOPs say. Fitted to
# twelve encoders, torch 2.15 on one core, widths 96 to 256, 2 to 8 heads, 64 and 128 tokens, 30 to 80 % padding.
_ATTENTION = 2.5
# Packing and unpacking run on one thread, so long for each number of each token and layer. Fitted to twelve encoders,
# torch 2.14 on two cores with AVX-512, widths 64 to 512, 32 to 256 tokens, 8 to 64 sequences, 35 to 75 % padding: 5 to
# 18 ns, in the middle 12. On these two cores seven of the twelve took longer on the fast path than without it, by up to
# 2.1 times, and the others 0.65 to 0.9 of the time.
_PACKING_S = 12e-9
# What is left of all but the products and attention where the fast path is not taken for other reasons than nested
# tensors: layer by layer in Python, elementwise work over the padding too (accuracy's ticket_router_sequence_first).
_REST_IN_PYTHON = 0.5
_NATIVE = "aten::_transformer_encoder_layer_fwd"
# Where the number of sequences is not known: a share of what the encoder takes, for each thread beyond the first. With
# two threads instead of one 0.14 to 0.33 more of the time was left than FLOPs say, 0.22 on the mean of eight encoders.
_PACKING = 0.22
_PRODUCTS = frozenset(("aten::addmm", "aten::mm", "aten::_addmm_activation"))


def encoder_share(evidence: Evidence) -> float:
    """Share of the traced steps in which encoders compute, on the host."""
    if not len(evidence.steps):
        return 0.0
    covered, _ = _ranges(evidence)
    return float(covered.within(evidence.steps.start, evidence.steps.end).sum()) / evidence.steps.total_ns


def called_encoder(evidence: Evidence) -> Encoder | None:
    """The one encoder that the steps call: of several the trace does not tell which one takes how long."""
    found = [each for each in evidence.record.encoders if each.calls] if evidence.record is not None else []
    return found[0] if len(found) == 1 and encoder_share(evidence) else None


def saved_without_padding(evidence: Evidence, encoder: Encoder) -> float:
    """Seconds of a step that the encoder takes less on the fast path; below 0 where it takes longer."""
    return encoder_share(evidence) * (evidence.step_s or 0.0) * (1.0 - left_without_padding(evidence, encoder))


def left_without_padding(evidence: Evidence, encoder: Encoder) -> float:
    """Share of an encoder's time that is left on the fast path; more than 1 where that takes longer.

    Its linear layers compute only what is no padding; the rest stays, or is what attention takes there by its FLOPs;
    packing and unpacking are added, which gain nothing from the operators' threads.

    FLOPs per token: four products with the width squared, two with the width and the inner layer, and two over the
    sequence.
    """
    linear = 8.0 * encoder.width**2 + 4.0 * encoder.width * encoder.feedforward
    attention = 4.0 * encoder.width * encoder.length
    share = _linear_share(evidence) or linear / max(linear + attention, 1.0)
    rest = (1.0 - share) * (1.0 if _is_native(evidence) else _REST_IN_PYTHON)
    rest = max(rest, _ATTENTION * share * attention / max(linear, 1.0))
    packing = _PACKING * max(0, _threads(evidence) - 1)
    seconds = encoder_share(evidence) * (evidence.step_s or 0.0)
    if encoder.sequences and seconds:
        _, calls = _ranges(evidence)
        numbers = encoder.sequences * encoder.length * encoder.width * encoder.layers * calls
        packing = _PACKING_S * numbers / seconds
    return share * (1.0 - (encoder.padding or 0.0)) + rest + packing


def _threads(evidence: Evidence) -> int:
    """Threads that the operators run on, as far as there are cores for them."""
    if evidence.record is None:
        return 1
    environment = evidence.record.environment
    return max(1, min(environment.intraop_threads, math.floor(environment.usable_cpus)))


def _ranges(evidence: Evidence) -> tuple[Coverage, float]:
    """When encoders compute, and how often in a step."""
    rows, steps = evidence.trace.annotations, evidence.steps
    chosen = np.zeros(0, np.int64)
    if len(rows) and len(steps):
        chosen = np.flatnonzero(names_like(evidence.trace, rows.name, ENCODER_RANGE.__eq__))
        chosen = chosen[assign(steps, rows.start[chosen]) >= 0]
    return Coverage.of(rows.start[chosen], rows.end[chosen]), len(chosen) / max(1, len(steps))


def _is_native(evidence: Evidence) -> bool:
    """Whether each layer is one operator already, without packed tokens."""
    operators = evidence.trace.operators
    return bool(names_like(evidence.trace, operators.name, _NATIVE.__eq__).any()) if len(operators) else False


def _linear_share(evidence: Evidence) -> float:
    """Share of the encoders' time in the products of their linear layers; 0 where none are seen."""
    operators = evidence.trace.operators
    covered, _ = _ranges(evidence)
    if not covered.total or not len(operators):
        return 0.0
    rows = np.flatnonzero(names_like(evidence.trace, operators.name, _PRODUCTS.__contains__))
    rows = rows[covered.contains(operators.start[rows])]
    spent = Coverage.of(operators.start[rows], operators.end[rows]).total  # one may hold another
    return min(1.0, spent / covered.total)
