"""What the page shows of a session's outcome: the waterfall's bars in percent of the width, the trials as rows."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from advisor.findings import Numerics, Outcome, Trial
from advisor.report import tried, wording
from advisor.report.waterfall import Bar, Waterfall, waterfall

# Losses as a chart: in the units of its viewBox.
_WIDTH, _HEIGHT, _MARGIN = 320.0, 90.0, 4.0


def shown(outcome: Outcome) -> dict[str, Any]:
    """All that the template needs, as finished texts and positions."""
    shape = waterfall(outcome)
    return {
        "headline": tried.headline(outcome),
        "basis": tried.basis(outcome),
        "ended": tried.ended(outcome),
        "now": tried.now(outcome),
        "kept": bool(outcome.kept),
        "command": outcome.command,
        "patch": any(trial.fix.diff for trial in outcome.trials if trial.status == "kept"),
        "rate": shape.rate,
        "unit": "samples per second" if shape.rate else "time per step",
        "bars": [_bar(bar, shape) for bar in shape.bars],
        "ticks": _ticks(shape),
        "trials": [_trial(trial) for trial in outcome.trials],
        "runs": outcome.runs,
    }


def _bar(bar: Bar, shape: Waterfall) -> dict[str, Any]:
    trial = bar.trial
    lines = [f"{shape.text(bar.amount)} {shape.unit}"]
    if trial is not None:
        lines += [f"before it {shape.text(bar.start or 0.0)}", f"measured {tried.measured(trial)}"]
        lines += [f"predicted {tried.predicted(trial)}"]
    if bar.low is not None and bar.high is not None:
        lines.append(f"95% interval {shape.text(bar.low)} to {shape.text(bar.high)}")
    return {
        "kind": bar.kind,
        "label": trial.title if trial else bar.label,
        "rule": trial.rule if trial else "",
        "number": trial.number if trial else None,
        "amount": shape.text(bar.amount),
        "measured": tried.measured(trial) if trial else "",
        "predicted_text": tried.predicted(trial) if trial else "",
        "lines": lines,
        "solid": _percent(bar.amount - shape.gained(bar), shape),
        "changed": _percent(shape.gained(bar) + shape.saved(bar), shape),
        "interval": _span(bar.low, bar.high, shape),
        "predicted": _span(*bar.predicted, shape) if bar.predicted else None,
    }


def _percent(amount: float, shape: Waterfall) -> str:
    return f"{100 * min(1.0, max(0.0, amount / shape.top)):.2f}" if shape.top else "0"


def _span(low: float | None, high: float | None, shape: Waterfall) -> dict[str, str] | None:
    if low is None or high is None:
        return None
    return {"left": _percent(low, shape), "width": _percent(min(high, shape.top) - min(low, shape.top), shape)}


def _ticks(shape: Waterfall) -> list[dict[str, str]]:
    """A few round amounts along the axis."""
    if not shape.top > 0:
        return []
    power = 10.0 ** math.floor(math.log10(shape.top / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= shape.top / 4)
    amounts = [index * step for index in range(math.floor(shape.top / step) + 1)]
    return [{"at": _percent(amount, shape), "text": shape.text(amount) if amount else "0"} for amount in amounts]


def _trial(trial: Trial) -> dict[str, Any]:
    compared = tried.side_by_side(trial)
    return {
        "number": trial.number,
        "rule": trial.rule,
        "title": trial.title,
        "safety": trial.safety,
        "safety_meaning": wording.SAFETY.get(trial.safety, ""),
        "status": trial.status,
        "reason": tried.reason(trial),
        "predicted": tried.predicted(trial),
        "measured": tried.measured(trial),
        "change": tried.change(trial),
        "figures": tried.sentence(tried.figures(trial)),
        "numerics": tried.sentence(tried.numerics(trial)),
        "verdict_after": trial.verdict_after,
        "runs": tried.runs(trial),
        "searched": [(size.text, tried.searched(size), size.folder) for size in trial.searched],
        "chart": _chart(compared) if compared else None,
        "excerpt": tried.excerpt(compared, 8) if compared else [],
        "noun": "loss" if compared and compared.kind == "loss" else "output",
    }


def _chart(compared: Numerics) -> dict[str, Any] | None:
    """Both curves as lines, broken where a value is not finite; None when there are not two points to join."""
    curves = (compared.before, compared.after)
    known = [value for curve in curves for value in curve if value is not None and math.isfinite(value)]
    count = max(map(len, curves))
    if count < 2 or len(known) < 2:
        return None
    low, high = min(known), max(known)
    span = (high - low) or abs(high) or 1.0

    def path(curve: list[float | None]) -> Markup:
        pieces, drawing = [], False
        for index, value in enumerate(curve):
            if value is None or not math.isfinite(value):
                drawing = False
                continue
            x = _MARGIN + (_WIDTH - 2 * _MARGIN) * index / (count - 1)
            y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / span
            pieces.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
            drawing = True
        return Markup(" ".join(pieces))

    return {
        "before": path(compared.before),
        "after": path(compared.after),
        "low": tried.amount(low),
        "high": tried.amount(high),
        "count": count,
        "width": f"{_WIDTH:g}",
        "height": f"{_HEIGHT:g}",
        "points": [_strip(compared, index, count) for index in range(count)],
    }


def _strip(compared: Numerics, index: int, count: int) -> dict[str, str]:
    """The upright strip of the chart that tells the values of one step."""
    apart = (_WIDTH - 2 * _MARGIN) / (count - 1)
    left, right = max(0.0, _MARGIN + apart * (index - 0.5)), min(_WIDTH, _MARGIN + apart * (index + 0.5))
    before, after = _at(compared.before, index), _at(compared.after, index)
    text = f"{index + 1}: before {before}, with the fix {after}"
    return {"x": f"{left:.1f}", "width": f"{right - left:.1f}", "text": text}


def _at(curve: list[float | None], index: int) -> str:
    return tried.amount(curve[index]) if index < len(curve) else "–"
