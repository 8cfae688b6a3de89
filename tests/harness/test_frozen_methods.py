"""A model that nobody trains may be called by any of its methods: each outermost call counts, and nothing else."""

from __future__ import annotations

import threading
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from advisor.harness.layout import Frozen
from advisor.harness.watches.constants import Constants
from advisor.harness.watches.frozen_methods import FrozenMethods

Tensor = torch.Tensor


class Coder(nn.Module):
    """Called by its methods, never as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 3, 3, padding=1)

    def encode(self, x: Tensor, *, twice: bool = False) -> Tensor:
        x = self.down(x).relu()
        return self.down(x[:, :3]).mean((2, 3)) if twice else x.mean((2, 3))

    def through(self, x: Tensor) -> Tensor:
        return self.encode(self(x))

    def fail(self, x: Tensor) -> Tensor:
        raise KeyError(len(x))

    def parts(self, x: Tensor) -> Iterator[Tensor]:
        yield from self.encode(x)

    def compare(self, model: Any) -> int:
        return len([self, model])

    def describe() -> str:  # type: ignore[misc]
        return "coder"

    def keep(self, batch: Any) -> None:
        self.kept = batch

    def over(self, batches: Any) -> int:
        return len([self.encode(x) for (x,) in batches])

    @staticmethod
    def scaled(x: Tensor) -> Tensor:
        return x / 255

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(self.down(x).relu())
        return y


class Told:
    """What was told of calls."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, int]] = []
        self.ended: list[Any] = []
        self.methods = FrozenMethods(torch, self.begins, self.ended.append)

    def begins(self, model: Any, given: list[Any]) -> bool:
        self.begun.append((model, len(given)))
        return len(self.begun) == len(self.ended) + 1


def test_methods_of_a_model_that_nobody_trains_are_told_of_while_it_is_on() -> None:
    told, coder, x = Told(), Coder(), torch.rand(2, 3, 8, 8)
    before = dict(vars(Coder))
    told.methods.on([coder], [nn.Parameter(torch.zeros(1))])
    wanted = coder.encode(x, twice=True)
    assert told.begun == [(coder, 1)] and told.ended == [wanted]
    assert torch.equal(next(coder.parts(x)), coder.encode(x)[0]) and torch.equal(Coder.scaled(x), x / 255)
    with pytest.raises(KeyError, match="2"):
        coder.fail(x)
    assert told.ended[-1] is None and len(told.ended) == len(told.begun)
    told.methods.off()
    assert dict(vars(Coder)) == before
    told.ended.clear()
    coder.encode(x)
    assert not told.ended


def test_a_model_that_is_trained_is_not_listened_to_and_nothing_is_where_nothing_is_trained() -> None:
    told, coder, other = Told(), Coder(), Coder()
    told.methods.on([coder, other], coder.parameters())
    x = torch.rand(2, 3, 8, 8)
    coder.encode(x)
    assert not told.begun
    other.encode(x)
    assert [model for model, _ in told.begun] == [other]
    told.methods.on([coder, other], [])
    other.encode(x)
    assert len(told.begun) == 1


def test_where_nothing_is_trained_they_are_listened_to_if_that_is_asked_for() -> None:
    told, coder, x = Told(), Coder(), torch.rand(2, 3, 8, 8)
    told.methods.on([coder], [], untrained=True)
    coder.encode(x)
    assert len(told.begun) == 1
    assert coder.compare(model=Coder()) == 2 and Coder.describe() == "coder"  # nothing given that a step is made of
    assert coder.over([[x]]) == 1 and len(told.begun) == 2  # of what is given batches the call of each is one
    assert coder.over(batches=iter([[x], [x]])) == 2 and len(told.begun) == 4
    coder.keep({"pixels": x})
    coder.keep(UserDict(pixels=x))
    coder.keep([x])
    assert len(told.begun) == 7
    told.methods.off()


def train(call: Any, coder: Coder) -> list[Frozen]:
    """What is seen in six steps of a training that gets the features of each picture by `call`."""
    torch.manual_seed(0)
    head = nn.Linear(24, 5)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    constants = Constants(torch, lambda: head.parameters(), lambda: [coder, head])
    for _ in range(6):
        x = torch.rand(12, 3, 32, 32)
        constants.batch(0, [x])
        with torch.no_grad():
            seen = call(coder, x)
        constants.forward_begins(head, [seen])
        scores = head(seen)
        constants.forward_ends(scores)
        optimizer.zero_grad()
        scores.square().mean().backward()
        optimizer.step()
        constants.step_ended()
    return constants.frozen()


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        pytest.param(lambda coder, x: coder.encode(x), True, id="a method"),
        pytest.param(lambda coder, x: coder.encode(2 * x - 1), True, id="on another scale"),
        pytest.param(lambda coder, x: coder.through(x), True, id="that calls others, and the forward"),
        pytest.param(lambda coder, x: coder.encode(x + torch.randn_like(x)), False, id="of noise"),
        pytest.param(lambda coder, x: coder.encode(x[torch.randperm(12)]), False, id="of pictures in another order"),
    ],
)
def test_what_a_method_gives_of_each_sample_is_the_same_in_each_epoch(call: Any, seen: bool) -> None:
    found = train(call, Coder())
    assert bool(found) == seen
    if seen:
        assert found[0].whole and found[0].sample_bytes == 24 * 4 and found[0].called_from[0].function == "<lambda>"


def test_forwards_are_watched_again_once_a_step_has_ended_within_a_method() -> None:
    coder, constants = Coder(), Constants(torch, tuple, lambda: [coder])
    watched: list[bool] = []

    def step(module: nn.Module) -> None:
        constants.forward_begins(module, [torch.rand(2, 3, 8, 8)])
        watched.append(constants._mode is not None)
        constants.forward_ends(torch.rand(2))
        constants.step_ended(untrained=True)

    step(coder)  # only timed, and the methods are listened to from here on
    for _ in range(3):
        constants._method_begins(coder, [torch.rand(2, 3, 8, 8)])
        step(coder)  # one that ends within the method, whose forwards are none of their own
    step(coder)
    constants.stop()
    assert watched[-1]


def test_what_is_called_again_and_again_in_a_step_is_not_listened_to() -> None:
    def each(coder: Coder, x: Tensor) -> Tensor:
        return torch.cat([coder.encode(one) for one in x.repeat(2, 1, 1, 1).split(1)])[:12]

    before = dict(vars(Coder))
    assert not train(each, Coder())
    assert dict(vars(Coder)) == before


def test_a_call_in_another_thread_is_none_of_the_steps() -> None:
    def elsewhere(coder: Coder, x: Tensor) -> Tensor:
        given: list[Tensor] = []
        thread = threading.Thread(target=lambda: given.append(coder.encode(x)))
        thread.start()
        thread.join()
        return given[0]

    assert not train(elsewhere, Coder())


def test_classes_are_as_they_were_after_the_steps() -> None:
    before = dict(vars(Coder))
    train(lambda coder, x: coder.encode(x), Coder())
    assert dict(vars(Coder)) == before
