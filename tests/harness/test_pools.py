"""Batches that a script draws from a tensor by itself are known again as rows of that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from advisor.harness.watches.pools import Pools
from tests.harness.test_frozen import SIDE, Conv, Whole, frozen, train

Tensor = torch.Tensor


def drawn(pool: Any, size: int = 12, steps: int = 6) -> Iterator[Tensor]:
    for _ in range(steps):
        yield torch.as_tensor(pool[torch.randint(len(pool), (size,)).numpy()])


def pictures(rows: int = 60) -> Tensor:
    return torch.rand(rows, 3, SIDE, SIDE)


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(lambda x: x, id="a tensor"),
        pytest.param(lambda x: x.mul(255).byte(), id="bytes"),
        pytest.param(lambda x: x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3), id="in another order"),
    ],
)
@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda x: x.float(), id="as it is"),
        pytest.param(lambda x: x.float() / 255.0, id="over 255"),
        pytest.param(lambda x: (x.float() - 0.4) / 0.2, id="on a scale"),
    ],
)
def test_a_frozen_part_of_rows_that_are_drawn_by_hand_is_seen(
    keep: Callable[[Tensor], Tensor], prepare: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    pool = keep(pictures())
    (line,) = train(Whole(frozen(Conv())), drawn(pool), prepare, delivered=False)
    assert (line.loaders, line.pools, line.rows, line.sample_bytes) == ([], [60], 12, 24 * 4)


class Kept:
    """Where a script has its data."""

    def __init__(self, pictures: Any) -> None:
        self.pictures = pictures


def test_an_array_of_an_object_is_a_pool() -> None:
    kept = Kept(pictures().numpy())
    (line,) = train(Whole(frozen(Conv())), drawn(kept.pictures), delivered=False)
    assert line.pools == [60]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda x: x.flip(-1), id="flipped"),
        pytest.param(lambda x: x + 0.01 * torch.randn_like(x), id="noise"),
        pytest.param(lambda x: x * random.uniform(0.8, 1.2), id="as bright as it happens"),
        pytest.param(lambda x: torch.rand_like(x), id="of nothing that is kept"),
        pytest.param(lambda x: torch.cat([x[:-1], torch.rand_like(x[-1:])]), id="one row of its own"),
    ],
)
def test_rows_that_are_changed_are_not(prepare: Callable[[Tensor], Tensor]) -> None:
    pool = pictures()
    assert not train(Whole(frozen(Conv())), drawn(pool), prepare, delivered=False)


def test_a_buffer_that_is_written_to_is_none() -> None:
    pool = pictures()

    def write(step: int) -> None:
        pool[step] = torch.rand(3, SIDE, SIDE)

    assert not train(Whole(frozen(Conv())), drawn(pool), delivered=False, after=write)


def test_what_is_made_anew_later_was_none() -> None:
    kept = Kept(pictures())

    def make(step: int) -> None:
        if step == 5:
            kept.pictures = pictures()

    batches = list(drawn(kept.pictures))
    assert not train(Whole(frozen(Conv())), iter(batches), delivered=False, after=make)


def test_a_batch_is_not_its_own_pool_and_few_numbers_find_none() -> None:
    pools, batch = Pools(torch), pictures(12)
    assert pools.find(batch) is None
    pool = torch.rand(400, 3)
    assert pools.find(pool[:8].clone()) is None
    wide = torch.rand(400, 9)
    assert pools.find(wide[[3, 5, 300]]) == (0, "as it was")
    assert pools.rows(0) == 400
    wide[0, 0] = 2
    assert pools.find(wide[[3, 5, 300]]) == (1, "as it was")  # it is another one now


def test_a_search_that_finds_nothing_is_not_repeated_for_ever() -> None:
    pools, pool = Pools(torch), pictures()
    for _ in range(6):
        assert pools.find(torch.rand(4, 3, SIDE, SIDE)) is None
    assert pools.find(pool[:4].clone()) is None


def test_one_row_of_many_that_is_another_one_is_seen() -> None:
    pools, pool = Pools(torch), pictures(200)
    batch = pool[torch.arange(64)]
    batch[1] = batch[1].flip(-1)
    assert pools.find(batch) is None
    assert pools.find(pool[torch.arange(64)]) == (0, "as it was")
