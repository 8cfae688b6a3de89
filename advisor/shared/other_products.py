"""Products that another way of computing them takes less for: what of a watched line's time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.harness.layout import FourierProduct, SparseProduct

_MOST_PACE, _LEAST_PACE = 4.0, 0.5  # narrow products are slower than wide ones


def saved_s(line: SparseProduct | FourierProduct, full_s: float, forward_s: float, backward_s: float) -> float:
    """Seconds of a step that the other way saves of a line; negative where it takes longer.

    By what the products of its forward, `full_s`, and the other way's forward and backward took where they were
    measured: a machine that is faster or slower in the first is taken to be so in all of them, within bounds.
    """
    pace = min(_MOST_PACE, max(_LEAST_PACE, line.seconds / full_s)) if full_s else 1.0
    back = line.differentiated_s / line.seconds if line.seconds else 0.0
    return line.seconds - pace * forward_s + back * (line.seconds - pace * backward_s)
