"""What takes fewer operations gives the same: products in another order, systems that are solved, topk for a sort."""

from __future__ import annotations

import itertools
import textwrap

import pytest
import torch

from advisor.edit import Draft
from advisor.edit.algebra.inverses import Inverted, inverses, solve
from advisor.edit.algebra.product_chains import Order, product_chains, reorder
from advisor.edit.algebra.sorted_parts import SortedPart, sorted_parts, take_first
from advisor.edit.sources import Source


def draft_of(body: str) -> Draft:
    text = f"import torch\n\n\ndef f(a, b, c, x):\n{textwrap.indent(body, '    ')}\n"
    return Draft(Source("/project/train.py", text))


def results(text: str, *given: torch.Tensor) -> list[torch.Tensor]:
    names: dict[str, object] = {}
    exec(text, names)
    found = names["f"](*given)  # type: ignore[operator]
    return list(found) if isinstance(found, tuple) else [found]


def same(draft: Draft, *given: torch.Tensor) -> None:
    before = results(draft.source.text, *given)
    after = results(draft.render(), *given)
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orders(first: int, last: int) -> list[Order]:
    if last - first == 1:
        return [first]
    ways = itertools.chain.from_iterable(
        itertools.product(orders(first, at), orders(at, last)) for at in range(first + 1, last)
    )
    return list(ways)


@pytest.mark.parametrize(
    "body",
    [
        "return a @ b @ c @ x",
        "return (a @ b) @ c @ x + 1",
        "return -(0.5 * a @ b @ c.T @ x)",
        "both = a @ b\nmore = both @ c\nreturn more @ x",
        "return torch.matmul(torch.matmul(torch.matmul(a, b), c), x).T",
        "return torch.matmul(a @ b @ (c - 1), x)",
    ],
)
@pytest.mark.parametrize("vector", [False, True])
def test_products_in_any_order_give_the_same(body: str, vector: bool) -> None:
    square = [numbers(5, 5) + each for each in range(3)]
    for order in orders(0, 4):
        draft = draft_of(body)
        (chain,) = product_chains(draft, 4, 4)
        reorder(draft, chain, order)
        if not (vector and ".T" in body and "matmul" in body):
            same(draft, *square, numbers(5) if vector else numbers(5, 2))


@pytest.mark.parametrize(
    "body",
    [
        "return a @ b",
        "both = a @ b\nreturn both @ x + both",
        "both = a @ b\nboth = both + 1\nreturn both @ x",
        "return a @ (b @ x)",
        "return torch.matmul(a @ b, x, out=c)",
        "return lambda y: a @ b",
    ],
)
def test_what_is_no_chain_is_none(body: str) -> None:
    assert product_chains(draft_of(body), 4, 3) == []


@pytest.mark.parametrize(
    "body",
    [
        "return torch.inverse(a) @ x",
        "return x.T @ torch.linalg.inv(a + b) @ x",
        "i = (a + b).inverse()\nreturn i @ (b @ x)",
        "return torch.matmul(torch.inverse(a), x), torch.mm(x.T, (a @ a).inverse())",
    ],
)
def test_systems_that_are_solved_give_the_same(body: str) -> None:
    draft = draft_of(body)
    for each in inverses(draft, 4):
        assert isinstance(each, Inverted)
        solve(draft, each)
    assert "inv" not in draft.render()
    eye = torch.eye(6, dtype=torch.float64)
    same(draft, numbers(6, 6) + 9 * eye, 3 * eye, eye, numbers(6, 2))


@pytest.mark.parametrize(
    "body",
    [
        "i = torch.inverse(a)\nreturn i @ x, i",
        "i = torch.inverse(a)\nb = 2 * a\nreturn i @ x",
        "return torch.inverse(a) * x",
        "return b @ -torch.inverse(a)",
    ],
)
def test_inverses_that_are_more_than_a_factor_stay(body: str) -> None:
    assert not any(isinstance(each, Inverted) for each in inverses(draft_of(body), 4))


@pytest.mark.parametrize(
    "body",
    [
        "return torch.sort(x, dim=1, descending=True)[0][:, :3]",
        "return torch.sort(x, 1)[1][:, 1:4]",
        "v, i = x.sort(-1, True)\nreturn v[..., :2], i[:, :2]",
        "s = torch.sort(input=x)\nreturn s.values[:, :3], s.indices[:, 1:3]",
        "y = -x\no = y.argsort(dim=1)[:, :3]\nreturn torch.gather(x, 1, o)",
        "o = torch.argsort(x, descending=False)\nreturn o[..., :4]",
        "v = x.sort(dim=0).values\nreturn v[:3], v[0:3]",
    ],
)
def test_the_first_ones_are_those_of_the_sort(body: str) -> None:
    draft = draft_of(body)
    (part,) = sorted_parts(draft, 4, 2)
    assert isinstance(part, SortedPart)
    take_first(draft, part)
    assert "sort" not in draft.render()
    same(draft, *[numbers(2)] * 3, numbers(9, 11))
    same(draft, *[numbers(2)] * 3, numbers(2, 2))  # of which there are fewer than are wanted


@pytest.mark.parametrize(
    "body",
    [
        "v, i = x.sort(-1)\nreturn v[:, :2], i",
        "v, i = x.sort(-1)\nreturn v[:, :2], i[:, :3]",
        "v = torch.sort(x)[0]\nv = v + 1\nreturn v[:, :2]",
        "return torch.sort(x, 0)[0][:, :2]",
        "return torch.sort(x, 1)[0][:, -2:]",
        "return (-x).argsort(1)[:, :2]",
        "return torch.sort(x, 1)[0][:, :c]",  # a tensor, or a number: topk takes what a slice takes
        "v = torch.sort(x, 1)[0]\na = 2\nreturn v[:, :a]",  # as many as are known later
        "v = torch.sort(x, 1)[0]\na -= 1\nreturn v[:, : a + 1]",
        "v = torch.sort(x, 1)[0]\nreturn [v[:, :a] for a in (1, 2)]",
        "v = torch.sort(x, 1)[0]\nb.k = 4\nreturn v[:, : b.k]",
        "v = torch.sort(x)[0]\ndef g():\n    return v\nreturn v[:, :2]",
    ],
)
def test_orders_of_which_more_is_read_stay(body: str) -> None:
    found = sorted_parts(draft_of(body), 4, 2)
    known = [each for each in found if isinstance(each, SortedPart)]
    assert not known or body.endswith(":c]")
