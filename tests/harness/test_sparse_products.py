"""Matrices that are mostly zeros are told by what is in them, and by whether each step has others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from advisor.harness.layout import SparseProduct
from advisor.harness.watches.sparse_products import SparseProducts
from tests.harness.watching import Watching

NODES, STEPS = 600, 3
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def graph(share: float = 0.01, seed: int = 0) -> torch.Tensor:
    return (torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(seed)) < share).float()


def seen(compute: Callable[[int], Any]) -> list[SparseProduct]:
    """What three steps show, each call of which is said to take a second."""
    products = SparseProducts(torch)
    for step in range(STEPS):
        with Watching(lambda name, args, _, result: products.called(name, args, result, 1.0)):
            compute(step)
        products.step_ends()
    return products.per_step(STEPS, 0.1)


def multiplied(product: Product) -> Product:
    return product


@pytest.mark.parametrize(
    ("multiply", "width"),
    [
        pytest.param(multiplied(lambda a, x: torch.mm(a, x)), 16, id="mm"),
        pytest.param(multiplied(lambda a, x: a @ x), 16, id="matmul"),
        pytest.param(multiplied(lambda a, x: torch.matmul(a, x.expand(3, NODES, 16))), 48, id="of three dimensions"),
        pytest.param(multiplied(lambda a, x: torch.addmm(torch.zeros(16), a, x)), 16, id="addmm"),
    ],
)
def test_a_graph_is_seen_with_how_many_numbers_it_has(multiply: Product, width: int) -> None:
    a = graph()
    (line,) = seen(lambda step: multiply(a, torch.rand(NODES, 16)))
    assert (line.rows, line.columns, line.numbers) == (NODES, NODES, int(a.sum()))
    assert (line.multiplied, line.needed) == (NODES * NODES * width, int(a.sum()) * width)
    assert line.turned == int(a.sum()) and line.seconds == 1.0 and line.differentiated_s == 0
    assert line.made == line.made_numbers == 0


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda step: FULL, id="a fifth of it numbers"),
        pytest.param(lambda step: TRAINED, id="one that is trained"),
        pytest.param(lambda step: NOTHING, id="nothing in it"),
        pytest.param(lambda step: SPARSE, id="a sparse one"),
        pytest.param(lambda step: HALF, id="of 16 bits"),
    ],
)
def test_other_matrices_are_left_alone(made: Callable[[int], torch.Tensor]) -> None:
    assert not seen(lambda step: made(step) @ torch.rand(NODES, 16, dtype=made(step).dtype))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda step: graph(seed=step), id="another one for each batch"),
        pytest.param(lambda step: KEPT.fill_diagonal_(float(step)), id="one that is written to"),
    ],
)
def test_one_that_each_step_makes_for_all_its_layers_is_told_once(made: Callable[[int], torch.Tensor]) -> None:
    def step(number: int) -> None:
        a = made(number)
        for _ in range(4):
            a @ torch.rand(NODES, 16)

    (line,) = seen(step)
    assert (line.calls, line.made, line.made_numbers) == (4, 1, NODES * NODES)


def test_the_same_ones_of_several_layers_are_added_up() -> None:
    first, other = graph(), graph(0.02, 1)
    (line,) = seen(lambda step: [a @ torch.rand(NODES, 16) for a in (first, other)])
    assert line.calls == 2 and line.turned == int(first.sum()) + int(other.sum())


def test_under_autocast_there_is_no_such_product() -> None:
    a = graph()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not seen(lambda step: a @ torch.rand(NODES, 16))


KEPT, FULL, NOTHING = graph(), graph(0.2), torch.zeros(NODES, NODES)
HALF = graph().bfloat16()
TRAINED, SPARSE = graph().requires_grad_(), graph().to_sparse_coo()


def test_a_small_one_takes_no_time() -> None:
    a = graph()[:50, :50].contiguous()
    assert not seen(lambda step: a @ torch.rand(50, 16))


def test_the_backward_is_counted_once_it_comes() -> None:
    a, x = graph(), torch.rand(NODES, 16, requires_grad=True)
    (line,) = seen(lambda step: (a @ x).sum().backward())  # type: ignore[no-untyped-call]
    assert line.differentiated_s == line.seconds == 1.0
