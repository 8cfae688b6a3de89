"""What does without the pairs computes what was written, whatever dimensions the two give each other."""

from __future__ import annotations

import string
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from advisor.edit.algebra.pairwise import PRODUCT, SQUARES, Pairing, pairings, replace, without_pairs
from advisor.edit.draft import Draft
from advisor.edit.sources import Source

SIZES = {"i": 4, "j": 3, "k": 5, "l": 2}
SUMS = {
    "product": "({0} * {1}).sum({dim})",
    "torch.sum": "torch.sum({0} * {1}, dim={dim})",
    "squares": "(({0} - {1}) ** 2).sum(dim={dim}) + 1",
    "pow": "({0} - {1}).pow(2).sum(axis={dim})",
    "root": "torch.sqrt(({0} - {1}).square().sum({dim}))",
    "half": "(({0} - {1}) ** 2).sum({dim}) ** 0.5",
    "norm": "({0} - {1}).norm(dim={dim})",
    "torch.norm": "torch.norm({0} - {1}, 2, {dim})",
    "linalg": "torch.linalg.norm({0} - {1}, dim={dim})",
    "manhattan": "({0} - {1}).norm(p=1, dim={dim})",
    "abs": "torch.abs({0} - {1}).sum([{dim}])",
    "cosine": "F.cosine_similarity({0}, {1}, dim={dim})",
}


def draft_of(text: str) -> Draft:
    return Draft(Source("train.py", text))


def written(name: str, has: str, whole: str, style: str) -> str:
    """A tensor with the dimensions `has` as one with all of `whole`, in one of the ways of writing it."""
    lacking = [at for at, letter in enumerate(whole) if letter not in has]
    if style == "bare" and has == whole[len(lacking) :]:
        return name
    if style == "unsqueeze":
        return name + "".join(f".unsqueeze({at})" for at in lacking)
    if style == "from behind":
        return name + "".join(f".unsqueeze({at - len(whole)})" for at in reversed(lacking))
    elements = ["None" if at in lacking else ":" for at in range(len(whole))]
    if style == "dots" and ":" in elements:
        elements[elements.index(":")] = "..."
    while style == "short" and elements[-1] == ":" and len(elements) > 1:
        elements.pop()
    return f"{name}[{', '.join(elements)}]"


@st.composite
def sums(draw: st.DrawFn) -> tuple[str, str, str, int, int]:
    """A kind of sum, its code, the dimensions of x and y, and how many each has where they meet."""
    whole = draw(st.sampled_from(["ijk", "ijkl"]))
    have = [draw(st.sets(st.sampled_from(whole), min_size=1)) for _ in "xy"]
    have[0] |= set(whole) - have[1]
    first, second = ("".join(letter for letter in whole if letter in each) for each in have)
    styles = st.sampled_from(["bare", "unsqueeze", "from behind", "index", "dots", "short"])
    x, y = written("x", first, whole, draw(styles)), written("y", second, whole, draw(styles))
    at = draw(st.integers(0, len(whole) - 1))
    dim = draw(st.sampled_from([at, at - len(whole)]))
    kind = draw(st.sampled_from(list(SUMS)))
    meeting = [len(has) if text == name else len(whole) for text, name, has in (("x", x, first), ("y", y, second))]
    return SUMS[kind].format(x, y, dim=dim), first, second, meeting[0], meeting[1]


def value(code: str, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """What an expression gives, and its gradients."""
    x, y = (each.clone().requires_grad_() for each in (x, y))
    result = eval(code, {"torch": torch, "F": F, "x": x, "y": y})
    (result * torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view_as(result)).sum().backward()
    grads = [each.grad if each.grad is not None else torch.zeros_like(each) for each in (x, y)]
    return [result.detach(), *grads]


def rewritten(text: str, first: int, second: int) -> str | None:
    draft = draft_of(f"import torch\nimport torch.nn.functional as F\nresult = {text}\n")
    for found in pairings(draft):
        code = without_pairs(draft, found, first, second)
        if code is not None:
            replace(draft, found, code)
            return draft.render().rpartition("result = ")[2].strip()
    return None


@settings(deadline=None)  # the machine may be busy
@given(sums())
def test_the_same_is_computed(made: tuple[str, str, str, int, int]) -> None:
    text, first, second, dimensions, others = made
    new = rewritten(text, dimensions, others)
    if new is None:
        return
    torch.manual_seed(0)
    x, y = (torch.randn([SIZES[letter] for letter in has], dtype=torch.float64) for has in (first, second))
    for before, after in zip(value(text, x, y), value(new, x, y), strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize("kind", SUMS)
def test_rows_of_two_matrices_are_always_rewritten(kind: str) -> None:
    for x, y in (("x[:, None]", "y[None]"), ("x.unsqueeze(1)", "y"), ("x[None, :, :]", "y[:, None, :]")):
        new = rewritten(SUMS[kind].format(x, y, dim=-1), 3, 2 if y == "y" else 3)
        assert new is not None and "None" not in new and "unsqueeze" not in new


def found_in(text: str) -> Sequence[Pairing]:
    return list(pairings(draft_of(text)))


def test_what_leads_to_the_sum_goes_with_it_where_nothing_else_needs_it() -> None:
    (one,) = found_in("d = x[:, None] - y\nsq = d ** 2\nnear = sq.sum(-1)\n")
    assert one.kind == SQUARES and len(one.names) == 2
    (one,) = found_in(
        "n = len(x)\na = x.unsqueeze(1).expand(n, m, d)\nb = y[None]\nnear = torch.pow(a - b, 2).sum(2)\n"
    )
    assert one.kind == SQUARES and len(one.names) == 2
    assert not found_in("d = x[:, None] - y\nx = step(x)\nnear = (d ** 2).sum(-1)\n")
    assert not found_in("d = x[:, None] - y\nnear = (d ** 2).sum(-1)\nforce = d / near\n")
    assert not found_in("for d in x[:, None] - y:\n    near = (d ** 2).sum(-1)\n")


AGAIN = (
    "def kernel(x, y):\n{above}    x = x.unsqueeze(1)\n    y = y.unsqueeze(2)\n"
    "    out = (x * y).sum(-1).pow(2)\n{below}    return out\n"
)


def test_names_that_are_bound_again_are_what_they_were() -> None:
    text = AGAIN.format(above="    x, y = F.normalize(x), F.normalize(y)\n", below="")
    draft = draft_of(text)
    (found,) = pairings(draft)
    code = without_pairs(draft, found, 4, 4)
    assert code is not None and len(found.names) == 2
    replace(draft, found, code)
    before: dict[str, object] = {"F": F}
    after: dict[str, object] = {"F": F, "torch": torch}
    exec(text, before)
    exec(draft.render(), after)
    assert "unsqueeze" not in draft.render()
    x, y = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    torch.testing.assert_close(after["kernel"](x, y), before["kernel"](x, y))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("", "    seen(y)\n"),
        ("    def later():\n        return y\n", "    later()\n"),
        ("", "    out = out + (lambda: y)()\n"),
        ("    global y\n", ""),
        ("    rows = (y[i] for i in range(3))\n", "    out = [out, *rows]\n"),
    ],
)
def test_names_that_are_asked_for_behind_stay(above: str, below: str) -> None:
    (found,) = found_in(AGAIN.format(above=above, below=below)) or (None,)
    assert found is None or not found.names


def test_names_that_each_round_binds_again_stay() -> None:
    loop = "def f(x, y):\n    for _ in range(2):\n        x = x[:, None]\n        near = (x * y[None]).sum(-1)\n"
    (found,) = found_in(loop)
    assert not found.names


@pytest.mark.parametrize(
    "text",
    [
        "(x[:, None] * y[None]).sum()",
        "(x[:, None] * y[None]).sum(-1, keepdim=True)",
        "(x[:, None] * y[None]).sum(*dims)",
        "(x[:, None] - y[None]).sum(-1)",
        "((x[:, None] - y[None]) ** 3).sum(-1)",
        "(x[:, None] - y[None]).norm(3, -1)",
        "np.sum(x[:, None] * y[None], -1)",
        "F.cosine_similarity(x[:, None], y[None], dim=-1, eps=1e-3)",
        "(x * y).sum(-1)",
    ],
)
def test_other_sums_are_none(text: str) -> None:
    assert not found_in(f"import numpy as np\nimport torch.nn.functional as F\nresult = {text}\n")


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("(x[:, None] * y).sum(-1)", 3, 3),  # y has rows of its own for each of x
        ("(x[:, :, None] * w).sum(1)", 3, 1),  # a vector's weights
        ("(x[:, 0, None] * y[None]).sum(-1)", 2, 3),  # a part of x
        ("(x[:, None] - y[None]).norm(dim=0)", 3, 3),  # over the pairs
        ("(x[:, None]  # rows\n * y[None]).sum(-1)", 3, 3),
    ],
)
def test_what_is_no_sum_over_pairs_is_left(text: str, first: int, second: int) -> None:
    assert rewritten(text, first, second) is None


@pytest.mark.parametrize(
    ("rest", "whole"),
    [("", True), ("d.fill_diagonal_(1e9)\n", False), ("d /= 2\n", False), ("d = d / 2\n", True), ("d[0] = 0\n", False)],
)
def test_cdist_keeps_what_it_gives_for_the_backward(rest: str, whole: bool) -> None:
    for text, kept in (("(x[:, None] - y).abs().sum(-1)", whole), ("((x[:, None] - y) ** 2).sum(-1)", True)):
        draft = draft_of(f"import torch\nd = {text}\n{rest}")
        (found,) = pairings(draft)
        assert (without_pairs(draft, found, 3, 2) is not None) is kept


def test_names_are_letters_of_the_alphabet() -> None:
    """Einsum takes no others; more dimensions than there are letters are left alone."""
    draft = draft_of("import torch\ny = (x[:, None] * y[None]).sum(-1)\n")
    (found,) = pairings(draft)
    assert found.kind == PRODUCT and without_pairs(draft, found, 20, 20) is None
    assert set(string.ascii_lowercase) >= set("ijklmnop")
