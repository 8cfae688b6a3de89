"""A few of many are drawn without an order of all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from advisor.edit import Drafts, Sources
from advisor.edit.loading.subset_draws import drawn_as_few

HEAD = "import numpy as np\nimport torch\n\nN, K = 300, 40\nx = torch.zeros(N, 3)\n\n"


def edited(text: str) -> tuple[str, str]:
    """The text with its draw edited, and why not."""
    drafts = Drafts(Sources({"/tmp/nowhere/train.py": text}))
    draft = drafts["/tmp/nowhere/train.py"]
    why = drawn_as_few(draft, draft.module)
    return draft.render() if not why else text, why


def drawn(text: str) -> list[int]:
    np.random.seed(0)
    torch.manual_seed(0)
    space: dict[str, object] = {}
    exec(text, space)
    return [int(each) for _ in range(100) for each in space["draw"]()]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("lines", "gives", "count"),
    [
        ("return np.random.choice(N, 40, replace=False)", ".choice(N, 40, replace=False)", 40),
        ("return np.random.choice(N, size=K, replace=False)", ".choice(N, size=K, replace=False)", 40),
        ("return np.random.choice(np.arange(N), K, False)", ".choice(np.arange(N), K, False)", 40),
        ("return np.random.permutation(N)[:K]", ".choice(N, min(K, N), replace=False)", 40),
        ("return torch.randperm(N)[:K]", ".item()).choice(N, min(K, N), replace=False)", 40),
        ("return torch.randperm(300)[0:40]", ".choice(300, 40, replace=False)", 40),
        ("return torch.randperm(300)[:400]", ".choice(300, 300, replace=False)", 300),
        ("return torch.randperm(len(x))[:K]", ".choice(len(x), min(K, len(x)), replace=False)", 40),
        ("return torch.randperm(x.size(0), device='cpu')[:K]", "replace=False)).to('cpu')", 40),
        (
            "return torch.randperm(n=N, generator=torch.default_generator)[:K]",
            ", generator=torch.default_generator)",
            40,
        ),
        (
            "return torch.randperm(N, generator=torch.default_generator, device='cpu')[:K]",
            ", generator=torch.default_generator, device='cpu')",
            40,
        ),
        ("k = None\n    return torch.randperm(N)[:k]", "len(range(N)[:k])", 300),  # all of it
        ("k = -290\n    return np.random.permutation(N)[:k]", "len(range(N)[:k])", 10),
        ("k = torch.tensor(40)\n    return torch.randperm(N)[:k]", "len(range(N)[:k])", 40),
        ("return (lambda K: torch.randperm(N)[:K])(None)", "len(range(N)[:K])", 300),
        ("return torch.randperm(x.shape[0])[:500]", ", min(500, x.shape[0]), ", 300),
        ("order = torch.randperm(N)\n    return order[:K]", "order = torch.from_numpy(", 40),
    ],
)
def test_as_many_are_drawn_of_all_alike(lines: str, gives: str, count: int) -> None:
    text = f"{HEAD}def draw():\n    {lines}\n"
    new, why = edited(text)
    assert not why and gives in new
    numbers = drawn(new)
    assert len(numbers) == 100 * count == len(drawn(text))
    assert drawn(new) == numbers  # the script's seed decides
    often = np.bincount(numbers, minlength=300)
    # 100 draws of `count` of 300: each number is expected 100·count/300 times, with a deviation of its root.
    assert len(often) == 300 and abs(often - len(numbers) / 300).max() < 5 * (len(numbers) / 300) ** 0.5
    assert len(set(numbers[:count])) == count  # none twice


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.randperm(N)",  # all of it is used
        "return torch.randperm(N)[K:]",
        "return torch.randperm(N)[:K:2]",
        "return torch.randperm(N)[:-1]",
        "order = torch.randperm(N)\n    return order[:K], order[K:]",
        "order = torch.randperm(N)\n    k = len(order) // 2\n    return order[:k]",
        "order = torch.randperm(N)\n    k = 5\n    return order[:k]",  # not known yet where it is drawn
        "return torch.randperm(next(sizes))[:K]",  # asked for twice
        "return torch.randperm(len(next(sizes)))[:K]",
        "return torch.randperm(load().shape[0])[:K]",
        "order = torch.randperm(N)\n    self.k = 9\n    return order[:self.k]",
        "torch.set_default_device('cuda')\n    return torch.randperm(N)[:K]",
        "return torch.randperm(N, dtype=torch.int32)[:K]",
        "return np.random.permutation(x)[:K]",  # of an array's rows
        "return np.random.permutation(rows)[:K]",
        "return np.random.choice(N, 5)",
        "return np.random.choice(N, 5, replace=again)",
        "return np.random.choice(N, 5, replace=False, p=weights)",
        "return np.random.choice(*drawn)",
        "return torch.randperm(N)[:K], torch.randperm(N)[:K]",
    ],
)
def test_what_may_need_all_is_left_alone(lines: str) -> None:
    text = f"{HEAD}def draw():\n    {lines}\n"
    new, why = edited(text)
    assert new == text and why
