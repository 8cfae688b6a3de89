"""What larger batches save on a CPU where some of the step is done once, as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.evidence.whatif import Change

if TYPE_CHECKING:
    from advisor.evidence import Evidence


def spread_s(evidence: Evidence, times: float, once: float) -> float:
    """Seconds of the step that go where forwards and backwards take `times` as many samples at once.

    There are as many in all. The share `once` of the step is paid once, as before, of what a larger batch spreads by
    the model.
    """
    estimate = evidence.what_if(Change(batch_scale=float(times)))
    return max(0.0, estimate.before - estimate.likely - (1.0 - 1.0 / times) * once * estimate.before)
