"""What ``nn.TransformerEncoder`` would take if it skipped the padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.evidence.coded import names_like
from advisor.evidence.coverage import Coverage
from advisor.harness.layout import ENCODER_RANGE, Encoder

if TYPE_CHECKING:
    from advisor.evidence import Evidence

# The fast path packs the tokens for its linear layers and unpacks them again for attention, which it computes over the
# padded length, without the fused kernel that the other path has: so many times what its FLOPs say. Fitted to twelve
# encoders, torch 2.15 on one core, widths 96 to 256, 2 to 8 heads, 64 and 128 tokens, 30 to 80 % of them padding. The
# share of the time that was left was at most 0.11 more and 0.25 less than it says, against nested tensors switched off,
# and at most 0.24 more and 0.36 less, against sequences first.
_ATTENTION = 2.5
# Packing and unpacking run on one thread, and take this share of what the encoder takes on one: with two threads
# instead of one 0.14 to 0.33 more of the time was left than the FLOPs say, 0.22 on the mean of eight encoders.
_PACKING = 0.22


def encoder_share(evidence: Evidence) -> float:
    """Share of the traced steps in which encoders compute, on the host."""
    steps, rows = evidence.steps, evidence.trace.annotations
    if not len(steps) or not len(rows):
        return 0.0
    chosen = names_like(evidence.trace, rows.name, lambda name: name == ENCODER_RANGE)
    covered = Coverage.of(rows.start[chosen], rows.end[chosen])
    return float(covered.within(steps.start, steps.end).sum()) / steps.total_ns


def left_without_padding(encoder: Encoder, threads: int) -> float:
    """Share of an encoder's time that is left on the fast path, by its linear layers' and its attention's FLOPs.

    `threads` of the operators: what is packed and unpacked gains nothing from them.

    Per token: four products with the width squared, two with the width and the inner layer, and two over the sequence.
    """
    linear = 8.0 * encoder.width**2 + 4.0 * encoder.width * encoder.feedforward
    attention = 4.0 * encoder.width * encoder.length
    left = (linear * (1.0 - (encoder.padding or 0.0)) + _ATTENTION * attention) / max(linear + attention, 1.0)
    return min(1.0, left + _PACKING * max(0, threads - 1))
