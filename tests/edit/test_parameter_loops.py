"""Loops over parameters: what they are about, and averages that come out the same in one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.edit import Draft
from advisor.edit.python_loops.parameter_loops import averaged, loop_of, loops_over_parameters
from advisor.edit.sources import Source


def draft_of(text: str) -> Draft:
    return Draft(Source("train.py", text))


@pytest.mark.parametrize(
    ("text", "kind", "squares"),
    [
        ("for p, q in zip(a.parameters(), b.parameters()):\n    q.mul_(d).add_(p, alpha=1 - d)\n", "average", False),
        ("for k, v in ema.state_dict().items():\n    v.copy_(v * d + (1 - d) * own[k])\n", "average", False),
        (
            "for n, p in m.named_parameters():\n    shadow[n] = d * shadow[n] + (1 - d) * p.data\n",
            "average",
            False,
        ),
        ("reg = 0\nfor p in m.parameters():\n    reg = reg + (p ** 2).sum()\n", "penalty", True),
        ("for p in m.parameters():\n    reg += p.norm(2) ** 2\n", "penalty", True),
        ("for p in m.parameters():\n    reg += p.norm(2)\n", "penalty", False),
        ("reg = sum(p.pow(2).sum() for p in m.parameters())\n", "penalty", True),
        ("reg = sum(p.abs().sum() for p in m.parameters())\n", "penalty", False),
        ("reg = sum((p ** 2).sum().sqrt() for p in m.parameters())\n", "penalty", False),
        ("reg = sum((w * w).sum() for w in m.parameters())\n", "penalty", True),
        ("reg = sum(torch.norm(p) ** 2 for p in m.parameters())\n", "penalty", True),
        ("for n, p in m.named_parameters():\n    reg += (f[n] * (p - old[n]) ** 2).sum()\n", "penalty", False),
        ("for w, w_t in zip(m.parameters(), old):\n    reg += ((w - w_t) ** 2).sum()\n", "penalty", False),
        ("for w, w_t in zip(m.parameters(), old):\n    reg += (w - w_t).norm(2) ** 2\n", "penalty", False),
        ("for p in m.parameters():\n    reg += torch.sum(torch.square(p.data))\n", "penalty", True),
        ("reg = sum((w * v).sum() for w, v in zip(m.parameters(), vs))\n", "penalty", False),
        ("params = list(m.parameters())\nfor p, v in zip(params, vs):\n    p.data -= lr * p.grad\n", "update", False),
        ("for g in o.param_groups:\n    for p in g['params']:\n        p.add_(p.grad, alpha=-lr)\n", "update", False),
        ("for p in m.parameters():\n    p.grad.mul_(c)\n", "gradients", False),
        ("for (n, p), f in zip(m.named_parameters(), fs):\n    f.add_(p.grad ** 2)\n", "sums", False),
        ("norms = {n: p.grad.norm().item() for n, p in m.named_parameters()}\n", "values", False),
        ("for p in m.parameters():\n    log.append(float(p.std()))\n", "values", False),
        ("for n, p in m.named_parameters():\n    entry[n] = p.detach().tolist()\n", "values", False),
        ("for p in m.parameters():\n    total += p.grad.norm().item() ** 2\n", "total", False),
        ("total = torch.stack([p.grad.norm() for p in m.parameters()]).norm()\n", "total", False),
    ],
)
def test_what_a_loop_is_about(text: str, kind: str, squares: bool) -> None:
    (loop,) = [each for each in loops_over_parameters(draft_of(text)) if each.kind]
    assert (loop.kind, loop.squares) == (kind, squares)


@pytest.mark.parametrize(
    "text",
    [
        "for p in m.parameters():\n    loss = f(p)\n    loss.backward()\n",
        "for p in m.parameters():\n    mutate(p)\n",  # who knows what it does
        "for p in m.parameters():\n    p.requires_grad_(False)\n",
        "for p in m.parameters():\n    nn.init.normal_(p) if p.dim() > 1 else None\n",
        "vs = [torch.zeros_like(p) for p in m.parameters()]\n",
        "for x in loader:\n    total += x.norm()\n",
        "for p in m.parameters():\n    p.clamp_(-1, 1)\n",
        "total = sum(p.numel() for p in m.parameters())\n",
        "for group in o.param_groups:\n    group['lr'] = lr\n",
    ],
)
def test_what_is_no_such_loop(text: str) -> None:
    assert not [each for each in loops_over_parameters(draft_of(text)) if each.kind]


BOTH = (
    "import torch\n\ndef norms(m):\n    for p in m.parameters():\n        log(p.norm().item())\n\n"
    "def both(m, e):\n    n = [p.grad.norm().item() for p in m.parameters()]\n"
    "    for p, q in zip(m.parameters(), e.parameters()):\n        q.lerp_(p, 0.1)\n"
)


def test_a_loop_is_told_by_its_operators() -> None:
    draft = draft_of(BOTH.replace("log(p", "print(p"))
    found = loop_of(draft, 3, ["aten::linalg_vector_norm", "aten::item"])
    assert found is not None and (found.line, found.kind) == (4, "values")
    found = loop_of(draft, 7, ["aten::lerp_"])
    assert found is not None and (found.line, found.kind) == (9, "average")
    found = loop_of(draft, 7, ["aten::linalg_vector_norm", "aten::item"])
    assert found is not None and (found.line, found.kind) == (8, "values")
    found = loop_of(draft, 8, ["aten::item"])  # a frame of its own, before Python 3.12
    assert found is not None and found.line == 8
    assert loop_of(draft, 7, ["aten::conv2d", "aten::relu"]) is None
    assert loop_of(draft, 3, ["aten::lerp_"]) is None
    assert loop_of(draft, 12, ["aten::lerp_"]) is None


def made() -> nn.Module:
    tied = nn.Linear(6, 6)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), tied, tied, nn.Linear(6, 3))


def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return made(), made()


def run(text: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    model, average = models()
    space: dict[str, object] = {}
    exec(text, space)
    for _ in range(3):
        space["follow"](model, average)  # type: ignore[operator]
    return [each.detach() for each in average.parameters()], [*average.buffers(), *model.parameters()]


@pytest.mark.parametrize(
    "body",
    [
        "with torch.no_grad():\n        for p, q in zip(model.parameters(), average.parameters()):\n"
        "            q.mul_(D).add_(p, alpha=1 - D)",
        "for p, q in zip(model.parameters(), average.parameters()):\n"
        "        q.data.mul_(D).add_(p.data, alpha=1.0 - D)",
        "for q, p in zip(average.parameters(), model.parameters()):\n        q.data.mul_(0.9).add_(0.1 * p.detach())",
        "for q, p in zip(average.parameters(), model.parameters(), strict=True):\n"
        "        q.data.mul_(0.9).add_(p.data * (0.1))",
        "for q, p in zip(average.parameters(), model.parameters()):\n        q.data.mul_(D)\n"
        "        q.data.add_((1 - D) * p.data)",
        "for q, p in zip(average.parameters(), model.parameters()):\n        q.data.lerp_(p.data, 1 - D)",
        "for q, p in zip(average.parameters(), model.parameters()):\n        q.data.mul_(1 - D).add_(p.data, alpha=D)",
    ],
)
def test_averages_come_out_the_same(body: str) -> None:
    text = f"import torch\nD = 0.9\n\ndef follow(model, average):\n    {body}\n"
    draft = draft_of(text)
    (loop,) = loops_over_parameters(draft)
    assert averaged(draft, loop)
    new = draft.render()
    assert "for p, q in" not in new and "for q, p in" not in new and "torch._foreach_lerp_(" in new
    before, after = run(text), run(new)
    assert not torch.equal(before[0][0], run(text.replace("0.9", "0.5").replace("0.1", "0.5"))[0][0])
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1], before[1], rtol=0, atol=0)  # and nothing else has changed


@pytest.mark.parametrize("data", ["", ".data"])
def test_the_shorter_of_two_models_ends_it(data: str) -> None:
    """BYOL's online network has a predictor more than its average."""
    text = (
        "import torch\n\n@torch.no_grad()\ndef follow(average, model):\n"
        "    for slow, fast in zip(average.parameters(), model.parameters()):\n"
        f"        slow{data}.mul_(0.9).add_(fast{data}, alpha=0.1)\n"
    )
    draft = draft_of(text)
    (loop,) = loops_over_parameters(draft)
    assert averaged(draft, loop, whole=False) and "_foreach_lerp_(" in draft.render()
    results = []
    for code in (text, draft.render()):
        torch.manual_seed(0)
        average, model = (torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(n))) for n in (2, 3))
        space: dict[str, Any] = {}
        exec(code, space)
        space["follow"](average, model)
        results.append([each.detach() for each in average.parameters()])
    torch.testing.assert_close(*results)


def test_gradients_meet_the_same_versions() -> None:
    """What ``.data`` hides from autograd stays hidden: a graph through the average still goes back."""
    text = (
        "import torch\n\ndef follow(model, average):\n    for p, q in zip(model.parameters(), average.parameters()):\n"
    )
    text += "        q.data.lerp_(p.data, 0.1)\n"
    draft = draft_of(text)
    (loop,) = loops_over_parameters(draft)
    assert averaged(draft, loop)
    space: dict[str, object] = {}
    exec(draft.render(), space)
    model, average = models()
    loss = average(torch.randn(4, 6)).square().sum()
    space["follow"](model, average)  # type: ignore[operator]
    loss.backward()


@pytest.mark.parametrize(
    "body",
    [
        "for p, q in zip(params, average.parameters()):\n        q.lerp_(p, 0.1)",  # who knows what these are
        "for p, q, r in zip(model.parameters(), average.parameters(), rates):\n        q.lerp_(p, 0.1)",
        "for i, (p, q) in enumerate(zip(model.parameters(), average.parameters())):\n        q.lerp_(p, 0.1)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.mul_(D).add_(q, alpha=1 - D)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        if p.requires_grad:\n"
        "            q.lerp_(p, 0.1)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.lerp_(p, 0.1)  # slowly",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.mul_(D).add_(p, alpha=1)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.mul_(D).sub_(p, alpha=1 - D)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.mul_(D).add_(p.float(), alpha=1 - D)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.mul_(D)\n        p.add_(p, alpha=1 - D)",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.lerp_(p, 0.1)\n    else:\n"
        "        print()",
        "for p, q in zip(model.parameters(), average.parameters()):\n        q.lerp_(p, 0.1)\n    return p",
    ],
)
def test_what_may_be_no_average_of_all_is_left_alone(body: str) -> None:
    draft = draft_of(f"import torch\nD = 0.9\n\ndef follow(model, average):\n    {body}\n")
    assert not any(averaged(draft, each) for each in loops_over_parameters(draft))
