"""What stops a training at regular distances, and is set aside from its steps: evaluations, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.harness.layout import Timing
from advisor.harness.timing import ENOUGH_PAUSES

FEWER = 2  # times as seldom, at least: else none is to go
_KEPT = 2  # of them, at least, in a script whose length is known


@dataclass(frozen=True)
class Pauses:
    """Each takes ``each_s`` seconds; the ``every`` steps from one to the next take ``steps_s``."""

    each_s: float
    every: float
    steps_s: float

    @property
    def period_s(self) -> float:
        return self.steps_s + self.each_s

    @property
    def share(self) -> float:
        """Of the time."""
        return self.each_s / self.period_s

    def fewer(self, enough: float, total_steps: int | None = None) -> int:
        """How many times as seldom they take the share `enough` of the time: a whole multiple, so that they are.

        Fewer than FEWER where the script, whose length is known, would then not have two of them.
        """
        times = max(FEWER, round(self.each_s * (1 - enough) / (enough * self.steps_s)))
        return times if not total_steps else min(times, int(total_steps / self.every / _KEPT))


def pauses_of(timing: Timing, cause: str, every: float | None, told: int | None = None) -> Pauses | None:
    """Those of a `cause` that the harness sets aside, `every` so many steps; None where too few were seen to say.

    `told`: the steps from one to the next that the script has told its framework, of which one then says how long they
    are.
    """
    count = timing.aside_counts.get(cause, 0)
    least, every = (1, told) if told else (ENOUGH_PAUSES, every)
    if timing.from_profile or not timing.step_s or not every or count < least:
        return None
    return Pauses(timing.aside.get(cause, 0.0) / count, every, every * timing.step_s)
