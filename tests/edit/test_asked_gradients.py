"""Which gradients a script reads: of what it attacks or optimizes, or of its weights."""

from __future__ import annotations

import pytest

from advisor.edit.gradients.asked_gradients import beside_optimizers, reads_gradients, without_inputs


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        pytest.param("image.requires_grad = True\nstep(image.grad.sign())", False, id="an attribute"),
        pytest.param("if 1:\n    x_adv.requires_grad_()\n    g = x_adv.grad.detach()", False, id="a call"),
        pytest.param("x = x.clone().detach().requires_grad_(True)\ng = x.grad.data", False, id="what it is made of"),
        pytest.param("delta = torch.zeros_like(x, requires_grad=True)\ndelta.grad.zero_()", False, id="an argument"),
        pytest.param("self.noise.requires_grad_()\nself.noise.grad.zero_()", False, id="an object's"),
        pytest.param("features.retain_grad()\nheat = features.grad.mean()", False, id="an activation's"),
        pytest.param(
            "def attack(net, x):\n    x.requires_grad_()\n    return x.grad\n\n\ndef f(x):\n    return x",
            False,
            id="a function's",
        ),
        pytest.param(
            "def attack(net, x):\n    x.requires_grad_()\n    return x.grad\n\ndef size(x):\n    return x.grad.norm()",
            True,
            id="another function's",
        ),
        pytest.param("x.requires_grad_()\nx.grad\nmap(lambda x: x.grad.norm(), net.weights())", True, id="a lambda's"),
        pytest.param("for x, y in test_loader:\n    x.requires_grad = True\n    x.grad.data", False, id="a batch's"),
        pytest.param("for name, x in net.named_parameters():\n    x.requires_grad_()\n    x.grad", True, id="a pair's"),
        pytest.param("for x in image_net.parameters():\n    x.requires_grad = True\n    x.grad", True, id="of a net"),
        pytest.param("k = net.conv.weight\nk.retain_grad()\nk.grad", True, id="made of a weight"),
        pytest.param("data = Variable(data, requires_grad=True)\ng = data.grad.data", False, id="as it was once"),
        pytest.param("(g,) = torch.autograd.grad(loss, x)", False, id="none is read"),
        pytest.param("g = data.grad.data", True, id="of what, nothing says"),
        pytest.param("image.requires_grad = True\nlayer.weight.grad.norm()", True, id="a layer's"),
        pytest.param("other.image.grad\nimage.requires_grad = True", True, id="of another of that name"),
        pytest.param("for p in parts:\n    p.requires_grad = True\n    p.grad.clamp_(-1, 1)", True, id="one by one"),
        pytest.param("for i, x in enumerate(xs):\n    x.requires_grad_()\n    x.grad.sum()", True, id="of a list"),
        pytest.param("param.requires_grad = True\nparam.grad.zero_()", True, id="a parameter by its name"),
        pytest.param("w = torch.randn(3, requires_grad=True)\nw -= 0.1 * w.grad", True, id="a weight"),
        pytest.param("z = nn.Parameter(torch.randn(3), requires_grad=True)\nz.grad", True, id="a parameter"),
        pytest.param("x.requires_grad = False\nx.grad", True, id="it needs none"),
        pytest.param("judge.requires_grad_(True)\ny = judge(x)\ny.grad", True, id="a model"),
        pytest.param("x.requires_grad_()\nx.grad\nx.parameters()", True, id="another one"),
        pytest.param("wandb.watch(model)\nx.requires_grad_()\nx.grad", True, id="a library reads them all"),
    ],
)
def test_reading_an_input_s_gradient_reads_no_weight_s(text: str, reads: bool) -> None:
    assert reads_gradients(text) == reads


def test_what_is_left_has_as_many_lines_and_says_nothing_of_the_inputs() -> None:
    text = "x = a.requires_grad_()\nx.grad\nmodel.requires_grad_(True)\nx.requires_grad_(False)\n"
    assert without_inputs(text) == "x = a\nx\nmodel.requires_grad_(True)\nx(False)\n"


def test_lines_of_inner_functions_are_their_own() -> None:
    text = (
        "def outer(x):\n    x.requires_grad_()\n    def inner(x):\n        return x.grad\n    return x.grad\n"
        "y = 1\ndef other(x):\n    return x.grad"
    )
    outer = text.replace("x.requires_grad_()", "x()").replace("    return x.grad\ny", "    return x\ny")
    assert without_inputs(text) == outer


def test_an_optimizer_that_is_only_written_reads_none() -> None:
    text = "class SAM(optim.Optimizer):\n    def step(self):\n        return self.p.grad\n\nclass PCGrad:\n    pass\n"
    assert beside_optimizers(text).split("\n") == ["", "", "", "", "class PCGrad:", "    pass", ""]


def test_what_is_never_read_is_left_as_it_is() -> None:
    text = "judge.requires_grad_(True)\nimage.requires_grad_()\n"
    assert without_inputs(text) == text
