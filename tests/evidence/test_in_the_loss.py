"""What is made of a forward's output, and goes into the loss of the same step."""

from __future__ import annotations

import pytest

from advisor.evidence.in_the_loss import is_between

STEP = """
def train(model, x, events):
    places, scores = model(x)
    {between}
    loss = distance(places, events, chosen) + 0.1 * scores.mean()
    {back}
"""


@pytest.mark.parametrize(
    ("between", "back", "found"),
    [
        ("chosen = match(places, events)", "loss.backward()", True),
        ("cost = cdist(places, events).detach()\n    chosen = torch.tensor(match(cost))", "loss.backward()", True),
        ("chosen = match(places, events)", "scaler.scale(loss).backward()", True),
        ("chosen = match(x, events)", "loss.backward()", False),
        ("chosen = rows; recall = match(places, events)", "loss.backward()", False),
        ("chosen = match(places, events)", "return loss", False),
        ("chosen = other(places, events)", "loss.backward()", False),
    ],
)
def test_a_matching_is_part_of_the_step(between: str, back: str, found: bool) -> None:
    assert is_between(STEP.format(between=between, back=back), {"match"}, {3}) is found
    assert not is_between("def f(:", {"match"}, {3})
