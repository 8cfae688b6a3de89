"""Loops that take the gradients of each sample by themselves, read in the source."""

from __future__ import annotations

import pytest

from advisor.evidence.python_loops.sample_gradients import loop_of_gradients
from advisor.harness.layout import Site

ROUND = """\
    model.zero_grad()
    loss = lossof(model(x[i : i + 1]), y[i : i + 1])  # called
    loss.backward()
"""
TOLD = {
    "sums of clipped gradients": (
        "for i in range(len(x)):\n"
        + ROUND
        + "    for s, p in zip(sums, model.parameters()):\n        s += p.grad * f\n"
    ),
    "squares, by name": (
        "for i in range(len(x)):\n" + ROUND + "    for n, p in model.named_parameters():\n"
        "        fisher[n] += p.grad.detach() ** 2\n"
    ),
    "norms in a list": (
        "for i in range(len(x)):\n" + ROUND + "    norms.append(sum(p.grad.norm() for p in model.parameters()))\n"
    ),
    "cleared by hand": (
        "for a, b in zip(x, y):\n    for p in weights:\n        p.grad = None\n"
        "    lossof(model(a[None]), b[None]).backward()  # called\n    rows.append([p.grad.clone() for p in weights])\n"
    ),
    "asked of autograd": (
        "for a, b in zip(x, y):\n    loss = lossof(model(a[None]), b)  # called\n"
        "    rows.append(torch.autograd.grad(loss, weights))\n"
    ),
    "in a function of its own": (
        "def one(model, a, b):\n    model.zero_grad()\n    lossof(model(a[None]), b).backward()  # called\n"
        "    return [p.grad.clone() for p in model.parameters()]\n\n\n"
        "rows = [one(model, a, b) for a, b in zip(x, y)]  # loop\n"
    ),
    "clipped in a function of its own": (
        "def clip(model):\n    for p in model.parameters():\n        p.grad.mul_(0.5)\n\n\nfor i in range(len(x)):\n"
        + ROUND
        + "    clip(model)\n    for s, p in zip(sums, model.parameters()):\n        s.add_(p.grad)\n"
    ),
}
SILENT = {
    "gradients that add up": "for i in range(len(x)):\n    lossof(model(x[i : i + 1])).backward()  # called\n",
    "nobody reads them": "for i in range(len(x)):\n" + ROUND,
    "they are only asked for": "for i in range(len(x)):\n" + ROUND + "    seen += model.w.grad is not None\n",
    "an optimizer steps": "for i in range(len(x)):\n" + ROUND + "    log(p.grad)\n    opt.step()\n",
    "weights follow, by hand": (
        "for i in range(len(x)):\n" + ROUND + "    for p in model.parameters():\n        p.data -= 0.1 * p.grad\n"
    ),
    "weights follow, in place": (
        "for i in range(len(x)):\n" + ROUND + "    for v, p in zip(vs, model.parameters()):\n"
        "        v.mul_(0.9).add_(p.grad)\n        p.sub_(v)\n"
    ),
    "weights follow, in a function": (
        "def update(ps):\n    for p in ps:\n        p.data = p.data - 0.1 * p.grad\n\n\nfor i in range(len(x)):\n"
        + ROUND
        + "    update(weights)\n"
    ),
    "weights follow what autograd gives": (
        "for a, b in zip(x, y):\n    gs = torch.autograd.grad(lossof(model(a[None]), b), weights)  # called\n"
        "    for p, g in zip(weights, gs):\n        p.add_(g, alpha=-0.1)\n"
    ),
    "gradients of the input": (
        "for i in range(len(x)):\n    model.zero_grad()\n    a = x[i : i + 1].clone()\n"
        "    model(a).sum().backward()  # called\n    maps.append(a.grad)\n"
    ),
    "inputs that ask for gradients": (
        "for a in x:\n    a.requires_grad_()\n    model.zero_grad()\n    model(a[None]).sum().backward()  # called\n"
        "    maps.append([p.grad for p in ps])\n"
    ),
    "the same input again and again": (
        "for i in range(9):\n    model.zero_grad()\n    model(x).sum().backward()  # called\n    log(p.grad)\n"
    ),
    "one state after another": (
        "for a in xs:\n    model.zero_grad()\n    h = model(a[None], h)  # called\n"
        "    h.sum().backward()\n    log(p.grad)\n"
    ),
    "differentiated again": (
        "for a in x:\n    g = torch.autograd.grad(model(a[None]), ps, create_graph=True)  # called\n"
        "    rows.append(g)\n"
    ),
    "until one is large": ("for i in range(len(x)):\n" + ROUND + "    if p.grad.norm() > 9:\n        break\n"),
    "an attribute that the next round may read": (
        "for i in range(len(x)):\n" + ROUND + "    self.noise = p.grad.std()\n"
    ),
    "while there is more": (
        "while more():\n    model.zero_grad()\n    lossof(model(x)).backward()  # called\n    log(p.grad)\n"
    ),
}


def found(text: str) -> tuple[Site, int | None] | None:
    lines = text.splitlines()
    frames = [Site("a.py", n) for mark in ("# called", "# loop") for n, line in enumerate(lines, 1) if mark in line]
    return loop_of_gradients(frames, lambda path: text)


@pytest.mark.parametrize("text", TOLD.values(), ids=TOLD.keys())
def test_loops_that_take_the_gradients_of_each_sample(text: str) -> None:
    line = next(n for n, each in enumerate(text.splitlines(), 1) if each.startswith(("for", "rows")))
    assert found(text) == (Site("a.py", line), 64)


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_loops_that_do_not(text: str) -> None:
    assert found(text) is None


@pytest.mark.parametrize(
    ("around", "batch"),
    [
        ("B = 32\nfor start in range(0, len(data), B):\n", 32),
        ("LR, B = 0.1, 16\nfor start in range(0, 1000, B):\n", 16),
        ("for part in order.split(24):\n", 24),
        ("for start in range(0, len(data), size()):\n", None),
        ("B = 32\nB = 64\nfor start in range(0, len(data), B):\n", None),
        ("for part in loader:\n", None),
    ],
)
def test_how_many_samples_the_loop_around_it_takes_at_a_time(around: str, batch: int | None) -> None:
    inner = "".join(f"    {line}\n" for line in TOLD["squares, by name"].splitlines())
    result = found(around + inner)
    assert result is not None and result[1] == batch
