"""What forwards compute of the samples alone is told from what is trained, drawn, mixed or changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advisor.harness.layout import Frozen
from advisor.harness.watches.constants import Constants

Tensor = torch.Tensor
Prepare = Callable[[Tensor], Tensor]
SOURCE = Path(__file__).read_text().splitlines()
SIDE = 28  # of a picture


class Conv(nn.Module):
    """Large enough to be worth a word, with what residual networks have: sums, and functions that work in place."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24))
        self.kwargs = kwargs

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.block(x).add_(x), inplace=True)
        return x.mean((2, 3))


class Whole(nn.Module):
    """A frozen body, and a head that is trained."""

    def __init__(self, body: nn.Module, between: Prepare | None = None) -> None:
        super().__init__()
        self.body, self.head, self.between = body, nn.Linear(24, 5), between

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)  # the features
        return self.head(self.between(x) if self.between is not None else x)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()


def batches(sizes: tuple[int, ...] = (12,) * 6) -> Iterator[Tensor]:
    for size in sizes:
        yield torch.rand(size, 3, SIDE, SIDE)


def call(constants: Constants, module: nn.Module, *given: Any) -> Any:
    constants.forward_begins(module, [each for each in given if isinstance(each, torch.Tensor)])
    output = module(*given)
    constants.forward_ends(output)
    return output


def train(
    model: nn.Module,
    given: Iterator[Tensor] | None = None,
    prepare: Prepare = lambda x: x,
    teacher: nn.Module | None = None,
    delivered: bool = True,
    after: Callable[[int], None] = lambda step: None,
) -> list[Frozen]:
    """What is seen in six steps of a training, of which the last three are watched."""
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    constants = Constants(torch, lambda: [each for group in optimizer.param_groups for each in group["params"]])
    for step, x in enumerate(given or batches()):
        if delivered:
            constants.batch(0, [x])
        x = prepare(x)
        wanted = torch.zeros(())
        if teacher is not None:
            with torch.no_grad():
                wanted = call(constants, teacher, x).mean()
        loss = (call(constants, model, x).mean() - wanted).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(step)
        constants.step_ended()
    return constants.frozen()


def test_a_frozen_part_of_a_model_is_seen_at_the_line_that_calls_it() -> None:
    torch.manual_seed(0)
    (line,) = train(Whole(frozen(Conv())))
    assert "# the features" in SOURCE[line.site.line - 1] and line.site.function == "forward"
    assert not line.whole and line.loaders == [0]
    assert line.sample_bytes == 24 * 4  # what the head is given, not what is between
    assert line.seconds > 0 and 0.1 < line.share < 1


def test_a_teacher_is_seen_at_the_line_that_calls_it() -> None:
    student = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 24))
    line = train(student, teacher=Conv().eval())[0]
    assert line.whole and line.called_from[0].function == "call"


def test_nothing_changes_under_watch() -> None:
    def losses(watch: bool) -> list[float]:
        torch.manual_seed(1)
        model, found = Whole(frozen(Conv()), between=nn.Dropout(0.5)), []
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        constants = Constants(torch, lambda: model.head.parameters())
        for x in batches():
            constants.batch(0, [x])
            loss = (call(constants, model, x) if watch else model(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            constants.step_ended()
            found.append(loss.item())
        assert bool(constants.frozen()) == watch
        return found

    assert losses(True) == losses(False)


class Scaled(Conv):
    """By a number of another origin."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.kwargs["scale"]())


class Noisy(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.kwargs["noise"](x))


class Adapted(Conv):
    """Low-rank adapters: what comes before the first one is frozen, and nothing behind it."""

    def __init__(self) -> None:
        super().__init__()
        frozen(self)
        self.adapter = nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.adapter(x)
        return F.relu(self.block(x)).mean((2, 3))


COUNT = iter(range(1000))
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]  # of ImageNet
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


@pytest.mark.parametrize(
    ("prepare", "seen"),
    [
        pytest.param(lambda x: x.view(x.shape), True, id="a view"),
        pytest.param(lambda x: x.to(memory_format=torch.channels_last), True, id="another format"),
        pytest.param(lambda x: x.clone(), True, id="a copy"),
        pytest.param(lambda x: x / 255.0, True, id="over 255"),
        pytest.param(lambda x: x.sub(MEAN).div(STD), True, id="each channel on a scale of its own"),
        pytest.param(lambda x: (x - x.mean()) / x.std(), False, id="less the mean of the batch"),
        pytest.param(lambda x: x - x.mean((1, 2, 3), True), False, id="less the mean of each sample"),
        pytest.param(lambda x: x * random.uniform(0.8, 1.2), False, id="as bright as it happens"),
        pytest.param(lambda x: x.square() / 255.0, False, id="on no scale"),
        pytest.param(lambda x: x.flip(-1), False, id="flipped"),
        pytest.param(lambda x: x + 0.1 * torch.rand_like(x), False, id="noise"),
        pytest.param(lambda x: x.add_(0.1 * torch.rand_like(x)), False, id="noise in place"),
        pytest.param(lambda x: x[:, :, next(COUNT) % 3 :], False, id="cropped"),
    ],
)
def test_what_a_model_is_given_is_what_the_loader_delivered(prepare: Prepare, seen: bool) -> None:
    assert bool(train(Whole(frozen(Conv())), prepare=prepare)) == seen


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        pytest.param(lambda: frozen(Conv()), True, id="frozen"),
        pytest.param(lambda: Conv().requires_grad_(False), False, id="batch norm in training"),
        pytest.param(lambda: Conv().eval(), False, id="trained"),
        pytest.param(lambda: frozen(nn.Sequential(nn.Dropout(0.1), Conv())), True, id="dropout in eval()"),
        pytest.param(lambda: nn.Sequential(nn.Dropout(0.1), frozen(Conv())), False, id="dropout"),
        pytest.param(lambda: frozen(Noisy(noise=torch.randn_like)), False, id="noise"),
        pytest.param(lambda: frozen(Noisy(noise=lambda x: x.mean(0))), False, id="the mean of all samples"),
        pytest.param(lambda: frozen(Noisy(noise=lambda x: x.mean((1, 2, 3), True))), True, id="of each sample"),
        pytest.param(lambda: frozen(Noisy(noise=lambda x: x.roll(1, 0))), False, id="another sample"),
        pytest.param(lambda: frozen(Noisy(noise=lambda x: x[0])), False, id="the first sample"),
        pytest.param(lambda: frozen(Noisy(noise=lambda x: torch.arange(float(SIDE)))), True, id="a constant"),
        pytest.param(
            lambda: frozen(Noisy(noise=lambda x: torch.from_numpy(np.random.rand(SIDE)).float())), False, id="NumPy's"
        ),
        pytest.param(lambda: frozen(Scaled(scale=lambda: 0.5)), True, id="a number"),
        pytest.param(lambda: frozen(Scaled(scale=lambda: random.choice([0.5, 0.5]))), False, id="a number by chance"),
        pytest.param(lambda: frozen(Scaled(scale=lambda: 1 + next(COUNT))), False, id="a number that grows"),
    ],
)
def test_what_is_frozen_is_neither_trained_nor_drawn_nor_mixed(body: Callable[[], nn.Module], seen: bool) -> None:
    torch.manual_seed(0)
    # A convolution may come before what is not frozen.
    assert (sum(each.calls for each in train(Whole(body()))) > 1) == seen


@pytest.mark.parametrize(
    ("prepare", "seen"),
    [
        pytest.param(lambda x: x.flatten(0, 1), True, id="a view"),
        pytest.param(lambda x: x.flatten(0, 1).clone(), True, id="a copy"),
        pytest.param(lambda x: x.flatten(0, 1) * 2 - 1, True, id="scaled"),
        pytest.param(lambda x: x.transpose(0, 1).flatten(0, 1), False, id="in another order"),
        pytest.param(lambda x: x.flatten(0, 1)[torch.randperm(12)], False, id="mixed"),
    ],
)
def test_the_frames_of_a_film_are_a_samples(prepare: Prepare, seen: bool) -> None:
    films = (torch.rand(3, 4, 3, SIDE, SIDE) for _ in range(6))
    found = train(Whole(frozen(Conv())), films, prepare=prepare)
    assert bool(found) == seen
    if seen:
        assert found[0].sample_bytes == 4 * 24 * 4  # of all frames


def test_frames_of_different_films_that_meet_are_no_samples_of_their_own() -> None:
    body = frozen(Noisy(noise=lambda x: x.cumsum(0)))
    films = (torch.rand(3, 4, 3, SIDE, SIDE) for _ in range(6))
    assert not train(Whole(body), films, prepare=lambda x: x.flatten(0, 1))


def test_a_smaller_last_batch_changes_nothing() -> None:
    assert train(Whole(frozen(Conv())), batches((12, 12, 12, 12, 5, 12)))


def test_without_a_loader_nothing_is_known_of_the_samples() -> None:
    assert not train(Whole(frozen(Conv())), delivered=False)


def test_only_what_comes_before_an_adapter_is_frozen() -> None:
    (line,) = train(Whole(Adapted()))
    assert "= self.body(x)" in SOURCE[line.called_from[1].line - 1] or "= self.body(x)" in SOURCE[line.site.line - 1]
    assert line.calls == 3  # of the stem: a convolution, a norm, a ReLU
    assert line.sample_bytes == 24 * SIDE * SIDE * 4


def test_a_teacher_that_follows_its_student_is_not_frozen() -> None:
    student = Whole(Conv())
    teacher = copy.deepcopy(student).eval()

    def follow(step: int) -> None:
        for each, other in zip(teacher.parameters(), student.parameters(), strict=True):
            each.data.mul_(0.99).add_(other.data, alpha=0.01)  # which no version counter tells of

    assert not train(student, teacher=teacher, after=follow)
    assert any(each.whole for each in train(student, teacher=teacher))


def test_a_teacher_that_is_given_new_weights_later_is_not_frozen() -> None:
    student = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 24))
    teacher = frozen(Conv())

    def copied(step: int) -> None:
        if step == 5:  # at the end of an epoch
            teacher.load_state_dict(Conv().state_dict())

    assert not train(student, teacher=teacher, after=copied)


def test_a_model_that_is_trained_is_not_frozen_where_no_gradients_are_recorded() -> None:
    model = Whole(Conv())
    assert not any(each.whole for each in train(model, teacher=model))


class Recurrent(nn.Module):
    """A text encoder, whose batches differ in length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(50, 96), nn.Embedding(64, 96)
        self.inner, self.outer = nn.Linear(96, 400), nn.Linear(400, 24)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.places(torch.arange(ids.shape[1]))
        scores = torch.softmax(x @ x.transpose(1, 2) / 10, -1)
        return self.outer(F.gelu(self.inner(scores @ x))).mean(1)


def test_an_encoder_of_texts_of_different_lengths_is_frozen() -> None:
    ids = (torch.randint(50, (16, length)) for length in (30, 30, 30, 31, 40, 25))
    (line,) = train(Whole(frozen(Recurrent())), ids)
    assert line.calls >= 8
