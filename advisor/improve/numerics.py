"""Does the script still compute the same? Its first losses before and after a fix or, without a loss, its outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from advisor.findings import Numerics
from advisor.harness.layout import RunRecord
from advisor.rule import Safety

# What an `exact` fix may differ by where unchanged runs do not differ at all. Another batch or another draw of a
# dropout changes a loss by percents; the order of a sum in float32 changes its seventh digit, which some dozens of
# training steps may grow to a thousandth.
EXACT_TOLERANCE = 1e-3
# For `numeric` ones, over the first losses: bfloat16 keeps 8 bits (0.4 %) in each product; sums average that out, and
# each training step carries on from it. fixtures/cifar_resnet.py with autocast: 0.2 % at the first loss, 6 % over the
# first eleven, while it learns as fast. A model that stops learning differs by half.
NUMERIC_TOLERANCE = 0.1
NUMERIC_VALUES = 20  # after more updates two roundings of one training are two trainings
# Unchanged runs that differ (atomics, threads) allow so many times their own drift: three repeats do not show all.
_REPEATS = 3.0
_ROUNDING = 1e-6  # losses smaller than this are zero, but for float32's rounding


def compare_numerics(
    safety: Safety, before: Sequence[RunRecord], after: Sequence[RunRecord]
) -> tuple[Numerics | None, str]:
    """The first values of the runs `before` and `after` a fix, and a sentence on what is wrong with them, or none.

    None when the runs recorded neither losses nor outputs. Every run is seeded alike, so value i of one belongs to
    value i of another.
    """
    kind, curves, patched = _curves(before, after)
    if not curves or not patched:
        return None, ""
    count = min(len(curve) for curve in (*curves, *patched))
    curves = [curve[:count] for curve in curves]
    patched = [curve[:count] for curve in patched]
    broken = not_finite(before, after)
    if safety is Safety.NUMERIC:
        curves, patched = ([curve[:NUMERIC_VALUES] for curve in group] for group in (curves, patched))
    repeats = max((drift(a, b) for a, b in combinations(curves, 2)), default=None)
    measured = _mean([drift(a, b) for a, b in zip(curves, patched, strict=False)])
    tolerance = _tolerance(safety, repeats)
    shown = Numerics(
        "loss" if kind == "loss" else "output",
        [_finite(value) for value in curves[0]],
        [_finite(value) for value in patched[0]],
        _finite(measured),
        tolerance,
        _finite(repeats),
    )
    if broken:
        return shown, broken
    if tolerance is not None and measured > tolerance:
        noun = "losses" if kind == "loss" else "outputs"
        own = f", and differ by {repeats:.2g} from run to run without it" if repeats else ""
        return shown, (
            f"it changes what is computed: the first {count} {noun} differ by {measured:.2g} of their size (allowed "
            f"for {safety.value} fixes: {tolerance:.2g}{own})"
        )
    return shown, ""


def not_finite(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> str:
    """A sentence when losses, outputs or weights became NaN or infinite with the fix, not without; else empty."""
    if any(_broken(record) for record in before):
        return ""
    for record in after:
        if _broken(record):
            noun = "the loss" if record.losses else "the output"
            weights = record.nonfinite_parameters and not record.nonfinite_losses
            return f"{'the weights' if weights else noun} became NaN or infinite"
    return ""


def drift(a: Sequence[float], b: Sequence[float]) -> float:
    """Root mean square of the difference over that of the first; 0 for equal curves.

    A value that is NaN or infinite in either says nothing here (:func:`not_finite` does). Where the first is zero but
    for rounding, so is the difference.
    """
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if math.isfinite(x) and math.isfinite(y)]
    difference, size = math.hypot(*(x - y for x, y in pairs)), math.hypot(*(x for x, _ in pairs))
    return difference / max(size, _ROUNDING * len(pairs)) if difference else 0.0


def _tolerance(safety: Safety, repeats: float | None) -> float | None:
    if safety is Safety.BEHAVIOUR:
        return None
    stated = EXACT_TOLERANCE if safety is Safety.EXACT else NUMERIC_TOLERANCE
    own = repeats if repeats is not None and math.isfinite(repeats) else 0.0
    return max(stated, _REPEATS * own)


def _curves(
    before: Sequence[RunRecord], after: Sequence[RunRecord]
) -> tuple[str, list[list[float]], list[list[float]]]:
    if all(record.losses for record in (*before, *after)):
        return "loss", [record.losses for record in before], [record.losses for record in after]
    groups = (before, after)
    found = [[record.outputs for record in group if record.outputs] for group in groups]
    kinds = [{record.models[0].output for record in group if record.models} for group in groups]
    if kinds[0] != kinds[1] and all(record.states for group in groups for record in group):
        found = [[record.states for record in group] for group in groups]  # of a model without its head, say
    if not all(found):
        return "output", [], []
    times = _times_the_batch(before[0], after[0])
    return "output", [_grouped(curve, times) for curve in found[0]], found[1]


def _times_the_batch(before: RunRecord, after: RunRecord) -> int:
    """How many steps' samples of the one make a step of the other, where the fix enlarged the batch; else 1."""
    one, other = before.timing.samples_per_step, after.timing.samples_per_step
    times = other / one if one and other else 1.0
    return round(times) if times >= 1.5 and abs(times - round(times)) < 0.01 else 1


def _grouped(curve: list[float], times: int) -> list[float]:
    """Means of so many values each: outputs are means over their batch."""
    if times == 1:
        return curve
    return [_mean(curve[at : at + times]) for at in range(0, len(curve) - times + 1, times)] or curve


def _broken(record: RunRecord) -> bool:
    if record.nonfinite_losses or record.nonfinite_parameters:
        return True
    return not all(math.isfinite(value) for value in (*record.losses, *record.outputs))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
