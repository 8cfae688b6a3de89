"""Fourier transforms that are written out as matrices are told by the waves in them, under whatever window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from advisor.harness.layout import FourierProduct
from advisor.harness.watches.fourier_products import FourierProducts
from tests.harness.watching import Watching

LENGTH, BINS, FRAMES, STEPS = 512, 257, 40, 3
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def waves(window: torch.Tensor | None = None, bins: int = BINS, length: int = LENGTH) -> torch.Tensor:
    """Cosines, then sines, a wave in each row."""
    angle = 2 * torch.pi / length * torch.outer(torch.arange(bins), torch.arange(length)).double()
    both = torch.cat([angle.cos(), -angle.sin()])
    return (both if window is None else both * window).float()


def seen(compute: Callable[[int], Any]) -> list[FourierProduct]:
    """What three steps show, each call of which is said to take a second."""
    products = FourierProducts(torch)
    for step in range(STEPS):
        with Watching(lambda name, args, kwargs, result: products.called(name, (args, kwargs), result, 1.0)):
            compute(step)
        products.lines.step_ends()
    return products.lines.per_step(STEPS, 0.1)


def multiplied(product: Product) -> Product:
    return product


@pytest.mark.parametrize(
    "multiply",
    [
        pytest.param(multiplied(lambda a, x: x @ a.T.contiguous()), id="made anew"),
        pytest.param(multiplied(lambda a, x: torch.matmul(a, x.T)), id="from the left"),
        pytest.param(multiplied(lambda a, x: F.linear(x.view(2, FRAMES // 2, LENGTH), weight=a)), id="linear"),
        pytest.param(multiplied(lambda a, x: F.conv1d(x[:, None], a[:, None], stride=LENGTH)), id="a convolution"),
    ],
)
def test_a_transform_is_seen_with_what_a_fast_one_takes(multiply: Product) -> None:
    a = waves(torch.hann_window(LENGTH))
    (line,) = seen(lambda step: multiply(a, torch.rand(FRAMES, LENGTH)))
    assert (line.length, line.waves) == (LENGTH, 2 * BINS)
    assert line.multiplied == FRAMES * LENGTH * 2 * BINS
    assert line.transformed == FRAMES * LENGTH * 9
    assert line.seconds == 1.0 and line.differentiated_s == 0


@pytest.mark.parametrize(
    "matrix",
    [
        pytest.param(waves(), id="no window"),
        pytest.param(waves(torch.hamming_window(LENGTH)), id="hamming"),
        pytest.param(waves(F.pad(torch.hann_window(320), (96, 96))), id="a shorter window"),
        pytest.param(waves(torch.hann_window(LENGTH), bins=200), id="not the highest"),
        pytest.param(waves(torch.hann_window(LENGTH))[torch.randperm(2 * BINS)], id="in some order"),
        pytest.param(3 * waves(torch.hann_window(LENGTH)).double(), id="louder"),
        pytest.param(waves(torch.hann_window(LENGTH))[:BINS], id="cosines"),
        pytest.param(waves(torch.hann_window(LENGTH))[BINS:], id="sines"),
        pytest.param(waves(bins=LENGTH), id="all of them, twice"),
    ],
)
def test_whatever_its_window(matrix: torch.Tensor) -> None:
    (line,) = seen(lambda step: torch.rand(FRAMES, LENGTH) @ matrix.to(torch.float32).T)
    assert line.waves == len(matrix)


def test_cosines_alone_have_half_of_a_transform() -> None:
    (line,) = seen(lambda step: F.conv1d(torch.rand(1, 1, 8 * LENGTH), COSINES[:, None], stride=LENGTH))
    assert line.transformed == 8 * LENGTH * 9 / 2 and line.convolves


_PITCH = torch.randint(1, 250, (90, 1), generator=torch.Generator().manual_seed(1))
_PHASE = torch.rand(90, 1, generator=torch.Generator().manual_seed(2)) * 2 * torch.pi
_ALL = torch.arange(1500)[:, None] % 256
ALL_TONES = (_ALL * torch.arange(LENGTH) * 2 * torch.pi / LENGTH + torch.linspace(0, 99, 1500)[:, None]).sin()
TONES = (_PITCH * torch.arange(LENGTH) * 2 * torch.pi / LENGTH + _PHASE).sin()
COSINES = waves(torch.hann_window(LENGTH))[:BINS]
STEPS_OF_A_SCALE = torch.outer(torch.logspace(0.5, 2.3, 200), torch.arange(LENGTH).float() * 2 * torch.pi / LENGTH)
TRIANGLES = (1 - (torch.arange(LENGTH) - torch.arange(128)[:, None] * 4).abs() / 6.0).clamp(min=0)
HALF_TURNS = (torch.pi / LENGTH * torch.outer(torch.arange(256), torch.arange(LENGTH) + 0.5)).cos()


@pytest.mark.parametrize(
    "matrix",
    [
        pytest.param(torch.randn(2 * BINS, LENGTH), id="anything"),
        pytest.param(torch.eye(LENGTH), id="nothing to do"),
        pytest.param(TRIANGLES, id="a bank of filters"),
        pytest.param(torch.cat([STEPS_OF_A_SCALE.cos(), STEPS_OF_A_SCALE.sin()]), id="the tones of a scale"),
        pytest.param(HALF_TURNS, id="a cosine transform"),
        pytest.param(waves()[3:4].repeat(300, 1), id="one wave"),
        pytest.param(torch.zeros(2 * BINS, LENGTH), id="nothing in it"),
        pytest.param(waves().requires_grad_(), id="one that is trained"),
        pytest.param(waves().bfloat16(), id="of 16 bits"),
        pytest.param(waves(bins=16), id="a few waves"),
        pytest.param(TONES, id="tones that somebody recorded"),
        pytest.param(waves()[::8].contiguous(), id="every eighth wave"),
        pytest.param(ALL_TONES, id="tones of all pitches"),
    ],
)
def test_other_matrices_are_left_alone(matrix: torch.Tensor) -> None:
    assert not seen(lambda step: F.linear(torch.rand(FRAMES, LENGTH).to(matrix.dtype), matrix))


def test_filters_of_several_channels_are_left_alone() -> None:
    assert not seen(lambda step: F.conv1d(torch.rand(1, 2, 4 * LENGTH), waves()[:, None].repeat(1, 2, 1)))


def test_several_channels_at_once_are_left_alone() -> None:
    x = torch.rand(1, 2, 4 * LENGTH)
    assert not seen(lambda step: F.conv1d(x, waves()[:, None].repeat(2, 1, 1), None, LENGTH, groups=2))
    assert not seen(lambda step: F.conv1d(x, waves()[:, None].repeat(2, 1, 1), None, LENGTH, 0, 1, 2))


def test_what_is_detached_of_something_trained_is_trained() -> None:
    trained = torch.nn.Parameter(waves())
    optimizer = torch.optim.SGD([trained], lr=1e-9)
    trained.grad = torch.ones_like(trained)

    def step(number: int) -> None:
        F.linear(torch.rand(FRAMES, LENGTH), trained.detach())
        optimizer.step()

    assert not seen(step)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_matrix_is_looked_at_once_until_it_is_written_to(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    original = FourierProducts._is_transform

    def look(self: FourierProducts, matrix: torch.Tensor) -> bool:
        looks.append(1)
        return original(self, matrix)

    monkeypatch.setattr(FourierProducts, "_is_transform", look)
    basis = waves()
    with mode():
        (line,) = seen(lambda step: [F.linear(torch.rand(4, LENGTH), basis[:]) for _ in range(5)])
    assert line.calls == 5 and len(looks) == 1


def test_one_that_is_written_to_is_none() -> None:
    basis = waves()

    def step(number: int) -> None:
        torch.rand(4, LENGTH) @ basis.T
        basis.zero_()

    assert not seen(step)


def test_what_fails_ends_the_looking_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise RuntimeError

    monkeypatch.setattr(FourierProducts, "_is_transform", fail)
    assert not seen(lambda step: torch.rand(4, LENGTH) @ waves().T)


def test_whatever_type_and_device_the_script_makes_tensors_with() -> None:
    a = waves()[:, :].contiguous()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            (line,) = seen(lambda step: F.linear(torch.rand(4, LENGTH, dtype=torch.float32, device="cpu"), a))
    finally:
        torch.set_default_dtype(torch.float32)
    assert line.waves == 2 * BINS


def test_of_several_matrices_the_largest_is_named() -> None:
    small, large = waves(), waves(bins=513, length=1024)
    (line,) = seen(lambda step: [torch.rand(4, a.shape[1]) @ a.T for a in (small, large)])
    assert (line.length, line.waves) == (1024, 1026)


def test_after_many_others_it_is_not_looked_for() -> None:
    a = waves()

    def step(number: int) -> None:
        for _ in range(300):
            torch.rand(4, LENGTH) @ torch.rand(LENGTH, 64)
        torch.rand(4, LENGTH) @ a.T

    assert not seen(step)


def test_the_backward_is_counted_once_it_comes() -> None:
    a, x = waves(), torch.rand(FRAMES, LENGTH, requires_grad=True)
    (line,) = seen(lambda step: (x @ a.T).sum().backward())  # type: ignore[no-untyped-call]
    assert line.differentiated_s == line.seconds == 1.0
