"""The edited source computes what the source did: each sample's part of the Jacobian, with the gradients it had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.edit import Drafts, Sources
from advisor.edit.algebra.batch_jacobians import OwnParts, batch_jacobians, of_the_sum

SCRIPT = """\
import torch
from torch.autograd.functional import jacobian
from torch.autograd import functional as AF


def parts(f, x):
{body}
"""
ONE = (
    "    jac = torch.autograd.functional.jacobian(f, x, create_graph=True)\n"
    "    return torch.diagonal(jac, dim1=0, dim2=1).t()",
    "    return jacobian(f, x, create_graph=True).diagonal()",
    "    return jacobian(f, x, True).diagonal(dim2=1).mT",
    "    jac = AF.jacobian(lambda z: f(z) if len(z) else f(z), x, create_graph=True)\n"
    "    return torch.einsum('iij->ij', jac)",
    "    return jacobian(func=f, inputs=x, create_graph=True)[range(len(x)), range(len(x))]",
    "    rows = torch.arange(x.shape[0])\n    return jacobian(f, x, create_graph=True)[rows, rows, :] * 2",
)
SEVERAL = (
    "    return torch.einsum('bibj->bij', jacobian(f, x, create_graph=True))",
    "    jac = jacobian(f, x, create_graph=True)\n    return jac.diagonal(0, 0, 2)",
    "    rows = range(len(x))\n    jac = jacobian(f, x, create_graph=True)\n    return jac[rows, :, rows]",
)
LEFT = (
    "    jac = jacobian(f, x)\n    return jac.diagonal(1)",
    "    jac = jacobian(f, x)\n    return jac.diagonal(dim1=1, dim2=2)",
    "    jac = jacobian(f, x)\n    print(jac.shape)\n    return jac.diagonal()",
    "    jac = jacobian(f, x)\n    jac += 1\n    return jac.diagonal()",
    "    jac = jacobian(f, x, vectorize=True)\n    return jac.diagonal()",
    "    jac = jacobian(f, (x, x))\n    return jac.diagonal()",
    "    jac = jacobian(f, x)\n    return jac[range(4), range(4)]",
    "    jac = jacobian(f, x)\n    return jac[range(1, len(x)), range(1, len(x))]",
    "    jac = jacobian(f, x)\n    rows = range(len(x))\n    return jac[rows, :2, rows]",
    "    jac = jacobian(f, x)\n    return torch.einsum('iij->ji', jac)",
    "    jac = jacobian(f, x)\n    return torch.einsum('iii->i', jac)",
    "    jac = jacobian(f, x)\n    return [jac.diagonal() for _ in range(2)][0].sum() + sum(jac.diagonal() for _ in x)",
    "    return jacobian(f, x).sum(0)",
)


def edited(body: str) -> tuple[str, bool]:
    """The script with this body, edited, and whether it was."""
    text = SCRIPT.format(body=body)
    draft = Drafts(Sources({"/tmp/nowhere/train.py": text}))["/tmp/nowhere/train.py"]
    found = batch_jacobians(draft, 6)
    done = all(isinstance(each, OwnParts) and of_the_sum(draft, each) for each in found) and bool(found)
    return (draft.render() if done else text), done


def run(text: str, f: Any, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What the function gives, and the gradients of the weights with what it gives as the loss."""
    space: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), space)
    result: torch.Tensor = space["parts"](f, x)
    return result, list(torch.autograd.grad(result.square().sum(), list(f.parameters()), allow_unused=True))


class Field(nn.Module):
    """A number for each sample, or several."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.net(x)
        return y.squeeze(-1)


@pytest.mark.parametrize(("body", "outputs"), [*((each, 1) for each in ONE), *((each, 2) for each in SEVERAL)])
def test_each_samples_part_and_its_gradients_are_what_they_were(body: str, outputs: int) -> None:
    text, done = edited(body)
    assert done and text.count("sum(") == 1
    field, x = Field(outputs), torch.randn(5, 3)
    (before, gradients), (after, others) = run(SCRIPT.format(body=body), field, x), run(text, field, x)
    assert before.shape == after.shape
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(others, gradients)


@pytest.mark.parametrize("body", LEFT)
def test_what_else_is_read_is_left_alone(body: str) -> None:
    assert not edited(body)[1]
