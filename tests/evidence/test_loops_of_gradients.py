"""Which loops ask for gradients, as the source has them."""

from __future__ import annotations

import pytest

from advisor.evidence.python_loops.rounds import differentiates


@pytest.mark.parametrize(
    ("text", "line", "asks"),
    [
        ("for i in range(8):\n    g.append(torch.autograd.grad(y[i], x)[0][i])\n", 1, True),
        ("from torch.autograd import grad\nrows = [grad(each, x)[0] for each in y]\n", 2, True),
        ("for i in range(8):\n    g.append(y[i].grad)\n", 1, False),
        ("for i in range(8):\n    with torch.no_grad():\n        g.append(y[i])\n", 1, False),
        ("for i in range(8):\n    g.append(y[i])\nz = torch.autograd.grad(y.sum(), x)\n", 1, False),
        ("for i in range(8):\n    g.append(torch.autograd.grad(y[i], x))\n", 2, False),
        ("for i in range(8:\n", 1, False),
    ],
)
def test_loops_that_ask_for_gradients_are_known_by_their_calls(text: str, line: int, asks: bool) -> None:
    assert differentiates(text, line) == asks
