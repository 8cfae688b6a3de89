"""One call gives the gradients that several gave, where they are asked for in one block and nothing changes between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.edit import Drafts, Sources
from advisor.edit.gradients.joined_gradients import ask_once, separate_gradients

HEAD = """\
import torch
from torch import autograd


def gradient(y, x):
    \"\"\"dy/dx.\"\"\"
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True, retain_graph=True)[0]


def slope(outputs, inputs, graph=True):
    (found,) = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), create_graph=graph)
    return found


def rate(u, x):
    ones = torch.ones_like(u)
    du = torch.autograd.grad(u, x, grad_outputs=ones, create_graph=True)[0]
    return du


def global_rate(u, x):
    return torch.autograd.grad(u, x, ONES, create_graph=True)[0]


def second(y, x):
    return gradient(gradient(y, x), x)


ONES = torch.ones(7, 1)


class Equations:
    def __init__(self, net):
        self.net = net

    @staticmethod
    def d(y, x):
        return autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def residual(self, x, t):
        u = self.net(x, t)
        u_x = self.d(u, x)
        u_t = self.d(u, t)
        return u_t + u * u_x


"""
BODIES = {
    "of names": "u_x = gradient(u, x)\nu_t = gradient(u, t)\nu_xx = gradient(u_x, x)\nreturn u_t + u * u_x - u_xx",
    "second derivatives, too": "u_x = slope(u, x)\nu_t = slope(u, t)\nu_xx = slope(u_x, x)\n"
    "u_xt = slope(u_x, t)\nreturn u_t + u_x * u_xx + u_xt",
    "by themselves": "u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]  # dx\n"
    "# and in time\nu_t, = autograd.grad(u, t, torch.ones_like(u), retain_graph=True, create_graph=True)\n"
    "return u_x * u_t",
    "with a name for what is asked with": "u_x = rate(u, x)\nu_t = rate(u, t)\nreturn u_x - u_t",
    "in expressions": "a = 2 * gradient(u, x)\nb = -gradient(u, t) + a\nreturn a * b",
    "in one expression": "return gradient(u, x) * gradient(u, t)",
    "something else between": "u_t = gradient(u, t)\nv = u.detach()\nu_x = gradient(u, x)\nreturn u_t + v * u_x",
    "a name that means something before": "u_x = x * 3\nu_t = gradient(u, t)\ny = u_x + 1\nu_x = gradient(u, x)\n"
    "return y * u_t * u_x",
    "keywords": "u_x = slope(inputs=x, outputs=u)\nu_t = slope(u, inputs=t)\nreturn u_x + u_t.square()",
    "of several in a branch": "if len(x) > 1:\n    u_x = gradient(u, x)\n    u_t = gradient(u, t)\nreturn u_x * u_t",
}
LEFT = {
    "the same one twice": "a = gradient(u, x)\nb = gradient(u, x)\nreturn a * b",
    "of something else by then": "a = gradient(u, x)\nu = u * 2\nb = gradient(u, t)\nreturn a * b",
    "written to in between": "a = gradient(u, x)\nw = u.detach()\nt.data.mul_(1.0)\nb = gradient(u, t)\nreturn a * b",
    "not both with a graph": "a = slope(u, x, True)\nb = slope(u, t, False)\nreturn a * b",
    "sometimes": "a = gradient(u, x)\nb = gradient(u, t) if len(x) else a\nreturn a * b",
    "in different blocks": "a = gradient(u, x)\nif len(x):\n    b = gradient(u, t)\nreturn a * b",
    "with a name of the module's": "a = global_rate(u, x)\nb = global_rate(u, t)\nreturn a * b",
    "by a function that does more": "a = second(u, x)\nb = second(u, t)\nreturn a * b",
    "of something that is computed": "a = gradient(u * 2, x)\nb = gradient(u * 2, t)\nreturn a * b",
    "for each of a list": "return sum(gradient(u, each) for each in (x, t))",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        u: torch.Tensor = self.net(torch.cat([x, t], 1))
        return u


def edited(text: str) -> tuple[str, int]:
    """The text, and how many groups of gradients one call gives in it."""
    drafts = Drafts(Sources({"/tmp/nowhere/train.py": text}))
    draft = drafts["/tmp/nowhere/train.py"]
    found = separate_gradients(draft)
    for each in found:
        ask_once(draft, each)
    return draft.render() if found else text, len(found)


def script(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in f"u = net(x, t)\n{body}".splitlines())
    return f"{HEAD}def residual(net, x, t):\n{lines}\n"


def run(text: str) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """What the function gives, the gradients of the weights for it, and how often gradients were asked for."""
    space: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), space)
    net = Net()
    x, t = (torch.rand(7, 1, generator=torch.Generator().manual_seed(each)).requires_grad_() for each in (1, 2))
    asked, original = [], torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        asked.append(1)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        result = space["residual"](net, x, t) + space["Equations"](net).residual(x, t)
    gradients = original(result.square().sum(), list(net.parameters()), allow_unused=True)
    return result, [each for each in gradients if each is not None], len(asked)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_one_call_gives_what_several_gave(body: str) -> None:
    before = script(body)
    after, groups = edited(before)
    assert groups >= 2  # one of them is the method's
    result, gradients, calls = run(before)
    others, other_gradients, fewer = run(after)
    torch.testing.assert_close(others, result)
    torch.testing.assert_close(other_gradients, gradients)
    assert fewer < calls


def test_methods_that_ask_are_known() -> None:
    after, groups = edited(HEAD + "def residual(net, x, t):\n    return 0 * x\n")
    assert groups == 1
    assert "u_x, u_t = autograd.grad(u, (x, t), grad_outputs=torch.ones_like(u), create_graph=True)" in after
    assert run(after)[2] == 1


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_may_be_something_else_is_left_alone(body: str) -> None:
    assert edited(script(body))[1] == 1  # the method's alone


def test_the_graph_is_kept_for_what_is_asked_in_between() -> None:
    text = script(  # what is trained goes back through a graph of its own
        "v, w = u.square(), net(x, t)\n"
        "u_x = torch.autograd.grad(u, x, torch.ones_like(u), retain_graph=True)[0]\n"
        "v_x = torch.autograd.grad(v, x, torch.ones_like(v), retain_graph=True)[0]\n"
        "u_t = torch.autograd.grad(u, t, torch.ones_like(u))[0]\nreturn w * u_x * v_x * u_t"
    )
    after, groups = edited(text)
    assert groups == 2
    torch.testing.assert_close(run(after)[0], run(text)[0])


def test_what_stands_above_and_behind_stays() -> None:
    after, _ = edited(script(BODIES["by themselves"]))
    assert "# and in time" in after
