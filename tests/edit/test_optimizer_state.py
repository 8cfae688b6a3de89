"""What a fused optimizer takes as it lies in memory: gradients that a script sets have to be in the weight's order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor import rulecheck
from advisor.rule import Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "fused-optimizer")
MAKES = "import torch\nopt = torch.optim.Adam(ps)  # <- optimizers\n"
SET_BY_HAND = {
    "autograd.grad": "for p, g in zip(ps, torch.autograd.grad(loss, ps)):\n    p.grad = g\n",
    "of its memory": "for p in ps:\n    p.grad.data = grads[p]\n",
    "several at once": "a.grad, b.grad = torch.autograd.grad(loss, (a, b))\n",
    "a view where weights have their channels last": (
        "net.to(memory_format=torch.channels_last)\nfor p in ps:\n    p.grad = flat.view_as(p)\n"
    ),
    "a transposed one": "w.grad = g.t()\n",
}
IN_ORDER = {
    "dropped": "for p in ps:\n    p.grad = None\n",
    "made of what backward gave": "for p in ps:\n    p.grad = p.grad / 4\n    p.grad.data.clamp_(-1, 1)\n",
    "added to it": "for p in ps:\n    p.grad += noise\n",
    "like the weight": "for p in ps:\n    p.grad = torch.zeros_like(p)\n",
    "a part of a row of numbers": "for p in ps:\n    p.grad = flat[a:b].view_as(p)\n",
    "read": "norms = [p.grad.norm() for p in ps]\n",
}


@pytest.mark.parametrize("code", SET_BY_HAND.values(), ids=SET_BY_HAND)
def test_gradients_that_the_script_sets_leave_the_optimizer_as_it_is(code: str, tmp_path: Path) -> None:
    assert rulecheck.left_alone(RULE, Example(MAKES + code, ""), tmp_path) == []


@pytest.mark.parametrize("code", IN_ORDER.values(), ids=IN_ORDER)
def test_gradients_in_the_order_of_the_weights_are_no_reason(code: str, tmp_path: Path) -> None:
    after = "import torch\nopt = torch.optim.Adam(ps, fused=True)\n" + code
    assert rulecheck.example(RULE, Example(MAKES + code, after), tmp_path) == []


@pytest.mark.parametrize("own", ["class Adam(Base):\n    pass\n", "from other import *\n"])
def test_a_class_of_that_name_may_be_another(own: str, tmp_path: Path) -> None:
    text = f"from torch.optim import *\n{own}opt = Adam(ps)  # <- optimizers\n"
    assert rulecheck.left_alone(RULE, Example(text, ""), tmp_path) == []


def _stepped(transposed: bool, fused: bool) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.zeros(8, 6))
    gradient = torch.arange(48.0).reshape(8, 6) - 20.5
    weight.grad = gradient.t().contiguous().t() if transposed else gradient
    torch.optim.SGD([weight], lr=0.1, fused=fused).step()
    return weight.detach()


def test_a_fused_step_goes_by_the_order_in_memory() -> None:
    """Where this fails because a later torch looks at strides, the rule may let such scripts go."""
    torch.testing.assert_close(_stepped(False, fused=True), _stepped(False, fused=False))
    assert not torch.allclose(_stepped(True, fused=True), _stepped(True, fused=False))
