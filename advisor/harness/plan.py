"""How many steps each window takes."""

from __future__ import annotations

from .layout import Options
from .timing import GROUP

SETTLE = 6  # steps, where there are three times as many: in the first ones constants are looked for (watches)
SURE = 0.7  # share of an earlier run's steps that a later one is trusted to do


class Plan:
    """How many intervals each window takes. ``total_steps`` > 0: the script is known to have so many steps in all.

    A run that only times settles and times in the same steps as one that goes on to profile.
    """

    def __init__(self, options: Options) -> None:
        self.settle: int | None = None  # None: until settled
        self.timing: int | None = None  # None: by the options' bounds
        self.wait, self.warmup, self.active = options.wait, options.warmup, options.active
        self.detail_warmup, self.detail_active = 1, 1
        self.cut = options.total_steps > 0
        if self.cut:
            intervals = options.total_steps - 1
            # The second run may be over sooner (a loop that ends when the loss is low enough).
            self._fit(intervals if intervals < 2 * GROUP else round(SURE * intervals), options.windows == "timing")

    def _fit(self, intervals: int, timing_only: bool) -> None:
        """Share `intervals` out: the detail and the profile first, the rest to timing, a few to settle.

        The detail keeps its warm-up or is left out: a window with stacks that begins without one corrupts memory
        (seen with torch 2.15: 7 crashes in 12 runs, none in 19 with a warm-up).
        """
        self.wait = 0
        detail = self.detail_warmup + self.detail_active
        if intervals < 2 * detail:
            detail = self.detail_active = 0
        rest = intervals - detail
        self.active = max(1, min(self.active, rest // 4))
        self.warmup = 1 if rest >= 3 else 0
        rest = max(rest - self.active - self.warmup, 0)
        self.settle = min(2 * GROUP, max(rest // 4, SETTLE if rest >= 3 * SETTLE else 0))
        self.timing = rest - self.settle
        if timing_only:
            self.timing = max(self.timing, 1)  # nothing is profiled, from which the times of so few steps are taken
