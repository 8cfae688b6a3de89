"""Draws by weights look them up in sums that are made once, and draw the very same numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.loading.weighted_draws import drawn_from_sums

HEAD = "import random\nimport numpy as np\n\nN = 500\nweights = np.random.RandomState(3).rand(N) ** 3\n"
HEAD += "weights /= weights.sum()\nrng = np.random.default_rng(5)\nold = np.random.RandomState(6)\n\n"


def edited(text: str, more: dict[str, str] | None = None) -> tuple[str, str]:
    """The text with its draw edited, and why not."""
    more = more or {}
    drafts = Drafts(Sources({"/tmp/nowhere/train.py": text, **more}, modules=dict.fromkeys(more, "other")))
    draft = drafts["/tmp/nowhere/train.py"]
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# <-" in each)
    why = drawn_from_sums(drafts, draft, line)
    return draft.render() if not why else text, why


def draws(text: str) -> list[object]:
    random.seed(1)
    np.random.seed(2)
    space: dict[str, object] = {}
    exec(text, space)
    return [space["draw"]() for _ in range(50)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("drawn", "gives"),
    [
        ("np.random.choice(N, size=5, p=weights)", "cdf.searchsorted(np.random.random_sample(5), side="),
        ("np.random.choice(N, 7, True, p=weights)", "random_sample(7)"),
        ("np.random.choice(N, p=weights)", "int(cdf.searchsorted(np.random.random_sample()"),
        ("np.random.choice(len(weights), size=(2, 3), p=weights)", "random_sample((2, 3))"),
        ("np.random.choice(np.arange(N), 4, p=weights)", "random_sample(4)"),
        ("rng.choice(N, 5, p=weights)", "rng.random(5)"),
        ("rng.choice(N, size=5, replace=True, p=weights)", "rng.random(5)"),
        ("old.choice(N, 5, p=weights)", "old.random_sample(5)"),
        ("random.choices(range(N), weights=weights, k=6)", "random.choices(range(N), cum_weights=cum_weights, k=6)"),
    ],
)
def test_the_same_numbers_are_drawn(drawn: str, gives: str) -> None:
    text = f"{HEAD}def draw():\n    return {drawn}  # <-\n"
    new, why = edited(text)
    assert not why and gives in new
    before, after = draws(text), draws(new)
    assert [np.asarray(each).tolist() for each in before] == [np.asarray(each).tolist() for each in after]
    assert {np.asarray(each).dtype for each in before} == {np.asarray(each).dtype for each in after}
    assert type(before[0]) is type(after[0])


def test_float32_weights_are_added_up_as_the_draw_does() -> None:
    text = HEAD.replace("** 3", "** 3\nweights = weights.astype('float32')").replace("\nweights /= weights.sum()", "")
    text += "p = (weights / weights.sum(dtype='float64')).astype('float32')\n"
    text += "def draw():\n    return np.random.choice(N, 50, p=p)  # <-\n"
    new, why = edited(text)
    assert not why
    assert [each.tolist() for each in draws(text)] == [each.tolist() for each in draws(new)]  # type: ignore[attr-defined]


def test_sums_of_a_tensor_are_an_array() -> None:
    text = "import numpy as np\nimport torch\n\np = torch.arange(1.0, 10.0).double() / 45\n"
    text += "def draw():\n    return np.random.choice(9, 50, p=p)  # <-\n"
    new, why = edited(text)
    assert not why
    assert [each.tolist() for each in draws(text)] == [each.tolist() for each in draws(new)]  # type: ignore[attr-defined]


def test_weights_of_an_object_have_their_sums_there() -> None:
    text = HEAD + (
        "class Pairs:\n    def __init__(self, counts):\n        self.n = len(counts)\n        self.p = counts ** 0.75\n"
        "        self.p /= self.p.sum()\n        self.size = 4\n\n    def draw(self):\n"
        "        return np.random.choice(self.n, self.size, p=self.p)  # <-\n\ndraw = Pairs(weights).draw\n"
    )
    new, why = edited(text)
    assert not why
    assert "self.p /= self.p.sum()\n        self.cdf = np.cumsum(np.asarray(self.p), dtype=float)\n" in new
    assert [each.tolist() for each in draws(text)] == [each.tolist() for each in draws(new)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("drawn", "later"),
    [
        ("np.random.choice(N, 5, False, p=weights)", ""),
        ("np.random.choice(N, 5, replace=again, p=weights)", ""),
        ("np.random.choice(words, 5, p=weights)", ""),
        ("np.random.choice(*given, p=weights)", ""),
        ("np.random.choice(N, 5, p=weights / 2)", ""),
        ("other.choice(N, 5, p=weights)", ""),
        ("rng.choice(N, 5, p=weights, shuffle=False)", ""),
        ("np.random.choice(N, 5, p=weights)", "weights[3] = 0\n"),
        ("np.random.choice(N, 5, p=weights)", "np.random.shuffle(weights)\n"),
        ("np.random.choice(N, 5, p=weights)", "np.add(weights, 1, out=weights)\n"),
        ("np.random.choice(N, 5, p=weights)", "alias = weights\n"),
        ("np.random.choice(N, 5, p=weights)", "weights.sort()\n"),
        ("np.random.choice(N, 5, p=weights)", "adapt(weights)\n"),
        ("np.random.choice(N, 5, p=weights)", "for epoch in range(3):\n    weights = anneal(epoch)\n"),
        ("np.random.choice(N, 5, p=weights)", "def set(p):\n    global weights\n    weights = p\n"),
        ("np.random.choice(N, 5, p=weights)", "weights = np.roll(weights, 1)\n"),
        ("(np.random.choice(N, 5, p=weights), np.random.choice(N, 5, p=weights))", ""),
    ],
)
def test_what_may_draw_otherwise_is_left_alone(drawn: str, later: str) -> None:
    text = f"{HEAD}def draw():\n    return {drawn}  # <-\n{later}"
    assert edited(text)[1]


@pytest.mark.parametrize(
    ("made", "later"),
    [
        ("self.p = p", ""),
        ("self.p = np.asarray(p)", ""),
        ("self.p = p / p.sum()", "    def set(self, p):\n        self.p = p\n"),
        ("if p is not None: self.p = p / p.sum()", ""),
        ("self.p = p / p.sum()", "pairs.p = anneal(pairs.p)\n"),
        ("self.p = p / p.sum()", "pairs.p[3] = 0\n"),
    ],
)
def test_weights_of_an_object_that_may_change(made: str, later: str) -> None:
    text = f"{HEAD}class Pairs:\n    def __init__(self, p):\n        {made}\n\n    def draw(self):\n"
    assert edited(f"{text}        return np.random.choice(N, 5, p=self.p)  # <-\n{later}")[1]


def test_another_file_may_change_the_weights() -> None:
    text = HEAD + "def draw():\n    return np.random.choice(N, 5, p=weights)  # <-\n"
    assert not edited(text, {"/tmp/nowhere/other.py": "print('weights')\n"})[1]
    assert edited(text, {"/tmp/nowhere/other.py": "import train\ntrain.weights[0] = 1\n"})[1]
    assert edited(text, {"/tmp/nowhere/other.py": "from train import weights\nweights[0] = 1\n"})[1]
