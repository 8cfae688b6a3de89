"""What larger batches save on a CPU where the optimizer's step, and the rest, are done once as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.evidence.facts import BACKWARD, FORWARD, LOADER
from advisor.evidence.whatif import Change

if TYPE_CHECKING:
    from advisor.evidence import Evidence


def spread_s(evidence: Evidence, times: float) -> float:
    """Seconds of the step that go where forwards and backwards take `times` as many samples at once.

    There are as many in all. Of what a larger batch spreads, by the model, what is no forward, backward or loading is
    paid once as it is.
    """
    estimate = evidence.what_if(Change(batch_scale=float(times)))
    once = 1.0 - sum(evidence.breakdown.share(part) for part in (FORWARD, BACKWARD, LOADER))
    return max(0.0, estimate.before - estimate.likely - (1.0 - 1.0 / times) * once * estimate.before)
