"""What operators take longer because their threads have gone to sleep: after a wait, or after work of one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence

ASLEEP_AFTER_S = 4e-3  # seconds without an operator in each step, from which on it was seen
# Operators that take so long by themselves have work for several threads, which sleep when they are not called for some
# ms: of 5.8, 3.4, 4.3 and 4.4 ms that steps computed between waits or work of Python's own (two threads; 0.3, 1.4, 1.8
# and 2.9 ms of it in such operators) 0.8, 0.9, 2.3 and 3.2 were gone without those; nothing was with one thread. What
# computes long is soon awake: of 5.6, 9.5 and 19.6 ms 3.8, 4.4 and none were gone.
_SHARED_NS = 50_000
_LIKELY_MOST_S, _MOST, _MOST_S = 3e-3, 1.3, 4.5e-3
# Of what a step computes not all can be waiting: of those four, 5.4 ms and 4.1 ms the shares of 0.14, 0.26, 0.53, 0.73,
# 0.09 and 0.71 were gone.
_LIKELY_SHARE, _LARGEST_SHARE = 0.4, 0.75


def asleep_s(evidence: Evidence, rest_s: float) -> tuple[float, float]:
    """Seconds per step, likely and at most, in which operators wait for threads that were asleep; 0 with one thread.

    Asked where a step computes after `ASLEEP_AFTER_S` or more in which it calls no operator; `rest_s` is the step
    without these.
    """
    record, steps, operators = evidence.record, evidence.steps, evidence.trace.operators
    if evidence.device_is_gpu or record is None or record.environment.intraop_threads < 2 or not len(steps):
        return 0.0, 0.0
    own = evidence.nesting.self_ns
    shared = (assign(steps, operators.start) >= 0) & (own >= _SHARED_NS)
    shared &= ~evidence.host.loader.contains(operators.start)
    seconds = float(own[shared].sum()) / 1e9 / len(steps) / evidence.inflation
    rest = max(rest_s, 0.0)
    return (
        min(seconds, _LIKELY_MOST_S, _LIKELY_SHARE * rest),
        min(_MOST * seconds, _MOST_S, _LARGEST_SHARE * rest),
    )
