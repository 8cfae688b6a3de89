"""Which loops of a source go through a linear recurrence."""

from __future__ import annotations

import pytest

from advisor.evidence.python_loops.recurrences import recurrence_at
from advisor.harness.layout import Site


def found(body: str) -> str:
    text = f"def smooth(x, s, h, out):\n    for t in range(1, x.shape[-1]):\n        {body}\n    return out\n"
    seen = recurrence_at(text, Site("a.py", 3))
    assert seen is None or seen.site.line == 2
    return f"{seen.state}: {seen.factor}" if seen is not None else ""


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ("h = (1 - s) * h + s * x[..., t]; out.append(h)", "h: 1 - s"),
        ("h = x[:, t] + h * s", "h: s"),
        ("h = s * x[t] - 0.9 * s * h; out[t] = h", "h: -(0.9 * s)"),
        ("h = s * h - (x[t] - 1)", "h: s"),
        ("h = s * h + f(out[-1]); out.append(h)", ""),
        ("h = torch.lerp(h, x[t], s)", "h: 1 - s"),
        ("h = h.lerp(x[t], 0.1)", "h: 1 - 0.1"),
        ("h = self.decay * h + x[t]", "h: self.decay"),
        ("h = s[t] * h + x[t]", ""),  # another factor in each round
        ("g = torch.sigmoid(x[t]); h = g * h + x[t]", ""),
        ("h = torch.tanh(s * h + x[t])", ""),
        ("h = s * h", ""),  # nothing is added
        ("h = s * h * h + x[t]", ""),
        ("h = s * h + x[t] * h", ""),
        ("h = s * h + x[t]; h = h.clamp(min=0)", ""),
        ("h = s * h + x[t]; y = h * x[t]; out.append(y)", ""),  # something else is done as well
        ("out.append(x[t])", ""),
    ],
)
def test_the_factor_is_the_same_in_each_round(body: str, factor: str) -> None:
    assert found(body) == factor


def test_a_while_loop_and_what_is_in_none_is_not_one() -> None:
    assert recurrence_at("while t < 9:\n    h = s * h + x[t]\n", Site("a.py", 2)) is None
    assert recurrence_at("h = s * h + x[0]\n", Site("a.py", 1)) is None
    assert recurrence_at("for t in\n", Site("a.py", 1)) is None
