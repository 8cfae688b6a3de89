"""Layers that a line calls several times in a step are told of, with their rows; and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advisor.harness.layout import LoopedLayer
from advisor.harness.watches.looped_layers import LoopedLayers
from tests.harness.watching import Watching

HEAD, SMALL = nn.Linear(64, 100), nn.Linear(8, 8)
LAYERS = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
STEPS = 3


def seen(compute: Callable[[], Any]) -> list[LoopedLayer]:
    """What three steps show, each call of which is said to take a second."""
    layers = LoopedLayers(torch)
    for _ in range(STEPS):
        with Watching(lambda name, args, _, result: layers.called(name, args, result, 1.0)):
            compute()
        layers.lines.step_ends()
    return layers.per_step(STEPS, 0.1)


def states(count: int = 5, rows: int = 12) -> list[torch.Tensor]:
    return [torch.rand(rows, 64) for _ in range(count)]


def test_a_head_on_each_state_is_seen() -> None:
    (line,) = seen(lambda: [HEAD(h) for h in states()])
    assert (line.inputs, line.outputs, line.calls, line.rows, line.seconds) == (64, 100, 5, 60, 5.0)
    assert line.differentiated_s == 0.0


def test_the_backward_is_counted_once_it_comes() -> None:
    (line,) = seen(lambda: torch.stack([HEAD(h) for h in states()]).sum().backward())  # type: ignore[no-untyped-call]
    assert line.differentiated_s == line.seconds == 5.0


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda: [HEAD(h) for h in states(3)], id="three times"),
        pytest.param(lambda: [HEAD(h) for h in states(rows=200)], id="of many rows"),
        pytest.param(lambda: [SMALL(h[:, :8]) for h in states()], id="a small one"),
        pytest.param(lambda: [layer(h) for layer, h in zip(LAYERS, states(6), strict=True)], id="one after another"),
        pytest.param(lambda: [F.relu(h) for h in states()], id="another function"),
    ],
)
def test_others_are_not(compute: Callable[[], Any]) -> None:
    assert not seen(compute)
