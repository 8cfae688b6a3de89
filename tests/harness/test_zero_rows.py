"""Products of rows that are zeros are told by what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from advisor.harness.layout import ZeroRow
from advisor.harness.watches.zero_rows import ZeroRows
from tests.harness.watching import Watching

WEIGHT = torch.randn(4, 64, 32)


def buffer(filled: int = 40, capacity: int = 160, seed: int = 0) -> torch.Tensor:
    """Four experts' places, of which so many are filled."""
    made = torch.zeros(4, capacity, 64)
    made[:, :filled] = torch.randn(4, filled, 64, generator=torch.Generator().manual_seed(seed))
    return made


def found(compute: Callable[[], Any]) -> tuple[list[ZeroRow], Any]:
    zeros = ZeroRows(torch)

    with Watching(lambda name, args, _, result: zeros.called(name, args, result, 1.0)):
        result = compute()
    return list(zeros.lines.lines.values()), result


@pytest.mark.parametrize(
    "multiply",
    [
        pytest.param(lambda x: torch.bmm(x, WEIGHT), id="bmm"),
        pytest.param(lambda x: x @ WEIGHT, id="matmul"),
        pytest.param(lambda x: torch.nn.functional.linear(x, WEIGHT[0].t()), id="linear"),
        pytest.param(lambda x: torch.addmm(torch.zeros(32), x.view(640, 64), WEIGHT[0]), id="addmm"),
        pytest.param(lambda x: torch.baddbmm(torch.zeros(1), x, WEIGHT), id="baddbmm"),
    ],
)
def test_most_places_of_a_buffer_are_empty(multiply: Callable[[torch.Tensor], Any]) -> None:
    (line,), _ = found(lambda: multiply(buffer()))
    assert (line.rows, line.zeros, line.calls) == (640, 480, 1) and line.seconds == pytest.approx(0.75)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda: buffer(150), id="nearly-full"),
        pytest.param(lambda: buffer().transpose(1, 2).contiguous(), id="columns"),  # of zeros, not rows
        pytest.param(
            lambda: torch.nn.functional.one_hot(torch.arange(640) % 64, 64).float().view(4, 160, 64), id="one"
        ),
        pytest.param(lambda: buffer(2, 8), id="small"),
        pytest.param(lambda: torch.zeros(4, 160, 64), id="a-first-state"),
        pytest.param(lambda: (buffer(160).requires_grad_() * (buffer() != 0)).transpose(0, 1), id="a-mask"),
    ],
)
def test_nothing_is_found(given: Callable[[], torch.Tensor]) -> None:
    x = given()
    assert found(lambda: x @ torch.randn(x.shape[-1], 8))[0] == []


def test_the_backward_is_counted_once_it_comes() -> None:
    weight = WEIGHT.clone().requires_grad_()
    (line,), result = found(lambda: buffer() @ weight)
    assert line.differentiated_s == 0.0
    result.sum().backward()
    assert line.differentiated_s == line.seconds == pytest.approx(0.75)
