"""A layer whose weight is a sum, and the two that take its place, compute the same, however the sum is written."""

from __future__ import annotations

import pytest
import torch

from advisor.edit.algebra.low_rank import merged_weights, split
from advisor.edit.draft import Draft
from advisor.edit.sources import Source

WRITTEN = {
    "one line": "y = F.linear(x, w + s * (b @ a), bias)",
    "no bias": "y = F.linear(x, w + (b @ a) * s)",
    "two factors": "y = F.linear(x, s * (b @ a) * 2.0 + w, bias=bias)",
    "factor first": "y = F.linear(x, w + s * b @ a, bias)",
    "names": "delta = torch.mm(b, a)\n    weight = w + delta\n    y = F.linear(x, weight, bias)",
    "functions": "y = torch.nn.functional.linear(x, torch.matmul(b, a) + w)",
    "other way round": "y = F.linear(x, w + s * (a.T @ b.T).T, bias)",
    "within": "y = F.linear(x, w + b @ a).relu() * F.linear(x, w)",
    "scale before": "half = s / 2\n    delta = b @ a\n    weight = w + delta * half\n    y = F.linear(x, weight)",
    "number by number": "y = F.linear(x, w + (b.abs() * b) @ a, bias)",
    "matrix first": "y = F.linear(x, w + b * s @ a)",
    "argument": "y = torch.relu(F.linear(x, w + b @ a, bias))",
}
SILENT = {"other way round"}
TEXT = "import torch\nimport torch.nn.functional as F\n\ndef f(x, w, a, b, s, bias):\n    {line}\n    return y\n"


def result(text: str) -> torch.Tensor:
    torch.manual_seed(0)
    space: dict[str, object] = {}
    exec(text, space)
    given = [torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(9, 12, dtype=torch.float64)]
    given += [torch.randn(3, 12, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)]
    return space["f"](*given, 0.3, torch.randn(9, dtype=torch.float64))  # type: ignore[operator]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_is_computed(name: str) -> None:
    text = TEXT.format(line=WRITTEN[name])
    draft = Draft(Source("train.py", text))
    found = list(merged_weights(draft, 4))
    assert len(found) == (name not in SILENT)
    for each in found:
        assert split(draft, each)
        torch.testing.assert_close(result(draft.render()), result(text))
        assert "+ b" not in draft.render() and "delta" not in draft.render() and "weight" not in draft.render()


@pytest.mark.parametrize(
    "line",
    [
        "weight = w + b @ a; y = F.linear(x, weight)",  # two statements in a line
        "weight = w + b @ a\n    y = F.linear(x, weight) + weight.sum()",
        "weight = w + b @ a\n    weight = weight * 2\n    y = F.linear(x, weight)",
        "y = F.linear(x, w - b @ a)",
        "y = F.linear(x, w + torch.relu(b @ a))",
        "m = torch.ones(len(w), 1)\n    y = F.linear(x, w + m * (b @ a))",  # of each row another
        "m = torch.ones(9)\n    y = F.linear(x, w + (b @ a) * m)",
        "y = F.linear(x, w + b + a)",
        "y = F.linear(*(x, w + b @ a))",
        "delta = b @ a\n    b = b * 2\n    y = F.linear(x, w + delta)",
        "delta = b @ a\n    y = [F.linear(x, w + delta) for b in x]",
        "delta = b @ a\n    while F.linear(x, w + delta).sum() > 9:\n        b = b / 2\n    y = x",
    ],
)
def test_sums_that_are_something_else(line: str) -> None:
    assert not list(merged_weights(Draft(Source("train.py", TEXT.format(line=line))), 4))


def test_an_input_that_is_computed_there_is_not_computed_twice() -> None:
    draft = Draft(Source("train.py", TEXT.format(line="y = F.linear(x.relu(), w + b @ a)")))
    (found,) = merged_weights(draft, 4)
    assert not split(draft, found)
