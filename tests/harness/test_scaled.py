"""Numbers on another scale are told from other numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.harness.watches.scaled import scaling

PIXELS = torch.randint(256, (8, 6, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@settings(max_examples=50, deadline=None)
@given(
    factors=st.lists(st.floats(0.01, 100) | st.floats(-100, -0.01), min_size=3, max_size=3),
    offsets=st.lists(st.floats(-10, 10), min_size=3, max_size=3),
)
def test_factor_and_offset_of_each_channel_are_found(factors: list[float], offsets: list[float]) -> None:
    x = PIXELS.permute(0, 3, 1, 2).contiguous()
    result = x.double() * torch.tensor(factors).double()[:, None, None] + torch.tensor(offsets)[:, None, None]
    found = scaling(torch, x, result)
    assert found is not None and found[0] == "as it was"
    assert found[1] == pytest.approx(factors, rel=0.006)
    assert found[2] == pytest.approx(offsets, abs=0.0006)


def test_channels_may_come_first_then() -> None:
    found = scaling(torch, PIXELS, PIXELS.permute(0, 3, 1, 2).float() / 255)
    assert found == ("permuted", (0.00392,) * 3, (0.0,) * 3)
    assert scaling(torch, PIXELS, PIXELS.permute(0, 3, 2, 1).float() / 255) is None


def test_two_batches_on_one_scale_compare_equal() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(32, 9, generator=generator) for _ in range(2))
    mean, std = first.mean(0), first.std(0)
    assert scaling(torch, first, (first - mean) / std) == scaling(torch, second, (second - mean) / std)
    own = [scaling(torch, each, (each - each.mean(0)) / each.std(0)) for each in (first, second)]
    assert own[0] is not None and own[1] is not None and own[0] != own[1]


@pytest.mark.parametrize(
    ("delivered", "result"),
    [
        pytest.param(torch.arange(6.0).reshape(2, 3), torch.randn(2, 3), id="two rows always lie on a line"),
        pytest.param(torch.arange(32.0).reshape(16, 2), torch.arange(32.0).reshape(16, 2) ** 2, id="squares"),
        pytest.param(torch.arange(32.0).reshape(16, 2), torch.arange(32).reshape(16, 2), id="whole numbers"),
        pytest.param(torch.ones(16, 2), torch.ones(16, 2) * 3, id="numbers that are all equal"),
        pytest.param(torch.arange(32.0).reshape(16, 2), torch.arange(32.0).reshape(8, 4) * 2, id="other samples"),
        pytest.param(torch.arange(32.0), torch.arange(32.0) * 2, id="one dimension"),
        pytest.param(torch.arange(32.0).reshape(16, 2), torch.zeros(16, 2) + torch.nan, id="no numbers"),
    ],
)
def test_other_numbers_are_on_no_scale(delivered: torch.Tensor, result: torch.Tensor) -> None:
    assert scaling(torch, delivered, result) is None


def test_one_number_that_differs_is_seen_wherever_it_is() -> None:
    x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    result = x * 2 - 1
    result[37, 1, 5, 11] += 0.5
    assert scaling(torch, x, result) is None
