"""Provisional; H2 replaces this file."""
from __future__ import annotations
import math, statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from advisor.harness.layout import RunRecord
_T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
@dataclass(frozen=True)
class Comparison:
    speedup: float
    low: float
    high: float
    pairs: int
    half: float
    def smallest_gain(self, min_gain: float) -> float:
        return math.exp(self.half) * (1 + min_gain)
def costs(before: RunRecord, after: RunRecord) -> tuple[float, float]:
    a, b = before.timing, after.timing
    assert a.step_s and b.step_s
    if a.samples_per_step and b.samples_per_step and a.samples_per_step != b.samples_per_step:
        return a.step_s / a.samples_per_step, b.step_s / b.samples_per_step
    return a.step_s, b.step_s
def compare_pairs(pairs: Sequence[tuple[float, float]]) -> Comparison:
    logs = [math.log(a / b) for a, b in pairs]
    n = len(logs)
    mean = sum(logs) / n
    sd = statistics.stdev(logs) if n > 2 else 0.05
    half = (_T[n - 1] if n > 2 else 2.0) * sd / math.sqrt(n)
    return Comparison(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, half)
def verdict(c: Comparison, min_gain: float) -> Literal["kept", "reverted", "inconclusive"]:
    return "kept" if c.low > 1 + min_gain else "reverted" if c.high < 1 + min_gain else "inconclusive"
def enough(c: Comparison, min_gain: float) -> bool:
    return c.pairs >= 3 and c.half <= max(math.log(1 + min_gain), abs(math.log(c.speedup)) / 2)
