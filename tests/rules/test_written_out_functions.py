"""Norms and activations that are written out are known by what they give, and torch's own function gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Draft, Drafts, Edit, Sources
from advisor.edit.written_out import WrittenOut, call_instead, written_out
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.written_out_functions import WrittenOutFunctions
from tests.conftest import PYTHON, QUICK

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\nEPS = 1e-5\n\n"
ROOT = "cdf = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))"
MEAN = "u = x.mean(-1, keepdim=True)\n    s = (x - u).pow(2).mean(-1, keepdim=True)"
BOTH = "m, v = x.mean((1, 2), keepdim=True), x.var((1, 2), unbiased=False, keepdim=True)"


def forms(code: str, rank: int) -> tuple[Draft, list[WrittenOut]]:
    draft = Drafts(Sources({"/nowhere/train.py": code}))["/nowhere/train.py"]
    return draft, written_out(draft, HEAD.count("\n") + 1, rank)


def changed(code: str, rank: int) -> str:
    """The function's text where torch's own functions are called."""
    draft, found = forms(code, rank)
    for each in found:
        call_instead(draft, each)
    return draft.render() if found else code


def results(code: str, rank: int, names: list[str]) -> list[torch.Tensor]:
    """What the function gives, and the gradients of what it is given."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    torch.manual_seed(0)
    sizes = (4, 6, 5, 7)[:rank]
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    shapes = {"w": sizes[-1:], "b": sizes[-1:], "g": (1, sizes[1], *([1] * (rank - 2)))}
    given = [torch.rand(shapes[name], dtype=torch.float64, requires_grad=True) for name in names]
    result = scope["f"](x, *given)
    return [result, *torch.autograd.grad((result * torch.rand_like(result)).sum(), (x, *given))]


@pytest.mark.parametrize(
    ("parameters", "body", "rank", "after"),
    [
        ("", "return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", 2, "F.gelu(x)"),
        ("", "return x * 0.5 * (1.0 + (x * 0.70710678).erf())", 3, "F.gelu(x)"),
        ("", f"{ROOT}\n    return x * cdf", 3, 'F.gelu(x, approximate="tanh")'),
        ("", "return x.mul(torch.sigmoid(x))", 4, "F.silu(x)"),
        ("", "return x / (1 + torch.exp(-x))", 2, "F.silu(x)"),
        ("", "return torch.sigmoid(x).mul(x)", 2, "F.silu(x)"),
        (
            "",
            "e = torch.exp(x - x.amax(1, keepdim=True))\n    return e / e.sum(1, keepdim=True)",
            3,
            "torch.softmax(x, 1)",
        ),
        ("", "e = x.exp()\n    e = e / e.sum(dim=-1).unsqueeze(-1)\n    return e", 2, "torch.softmax(x, -1)"),
        (
            ", w, b",
            f"{MEAN}\n    x = (x - u) / torch.sqrt(s + 1e-6)\n    return w * x + b",
            3,
            "F.layer_norm(x, x.shape[-1:], w, b, 1e-06)",
        ),
        (
            ", w, b",
            "return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b",
            2,
            "F.layer_norm(x, x.shape[-1:], w * (1 - 1 / x.shape[-1]) ** 0.5, b, 1e-06 ** 2)",
        ),
        (
            ", w",
            f"{MEAN}\n    return (x - u) * (s + EPS).rsqrt() * w",
            2,
            "F.layer_norm(x, x.shape[-1:], w, None, EPS)",
        ),
        ("", f"{BOTH}\n    return (x - m) / (v + EPS).sqrt()", 3, "F.layer_norm(x, x.shape[-2:], eps=EPS)"),
        ("", f"{BOTH}\n    return (x - m) / v.sqrt()", 3, "F.layer_norm(x, x.shape[-2:], eps=0.0)"),
        (
            ", g",
            "v, m = torch.var_mean(x, (1, 2, 3), False, True)\n    return g * (x - m) / (v + EPS).sqrt()",
            4,
            "F.group_norm(x, 1, g.flatten(), None, EPS)",
        ),
    ],
)
def test_the_same_comes_of_torchs_own(parameters: str, body: str, rank: int, after: str) -> None:
    code = f"{HEAD}def f(x{parameters}):\n    {body}\n"
    edited = changed(code, rank)
    assert edited == f"{HEAD}def f(x{parameters}):\n    return {after}\n"
    names = parameters.replace(",", " ").split()
    for one, other in zip(results(code, rank, names), results(edited, rank, names), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("parameters", "body", "rank"),
    [
        pytest.param("", "return x * torch.sigmoid(1.702 * x)", 2, id="a rougher GELU"),
        pytest.param("", "return x * torch.tanh(F.softplus(x))", 2, id="Mish, which takes as long either way"),
        pytest.param(", y", "return x * torch.sigmoid(y)", 2, id="a gate"),
        pytest.param("", f"{MEAN}\n    return x * (s + EPS).rsqrt()", 2, id="a norm that takes no mean off"),
        pytest.param("", "return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()", 2, id="a norm by squares"),
        pytest.param("", f"{MEAN}\n    return (x - u.detach()) / (s + EPS).sqrt()", 2, id="another gradient"),
        pytest.param("", f"{MEAN}\n    return (x - u) / (s + x.shape[0]).sqrt()", 2, id="no epsilon"),
        pytest.param("", f"{MEAN}\n    print(s)\n    return (x - u) / (s + EPS).sqrt()", 2, id="it does more"),
        pytest.param("", "x -= x.mean(-1, keepdim=True)\n    return x * torch.erf(x)", 2, id="in place"),
        pytest.param("", "x *= 0.5 * (1 + torch.erf(x / math.sqrt(2)))\n    return x", 2, id="GELU in place"),
        pytest.param(
            "", f"{BOTH}\n    return (x - m) / (v.sqrt() + 0.001)", 3, id="a large number beside the deviation"
        ),
        pytest.param(
            ", g", "u = x.mean(1, keepdim=True)\n    return g * (x - u) / x.std(1, keepdim=True)", 4, id="by channel"
        ),
        pytest.param("", "e = torch.exp(x)\n    return e / e.sum()", 2, id="shares of all"),
        pytest.param(
            ", w", "return (x - x.mean(0)) / (x.var(0, unbiased=False) + EPS).sqrt() * w", 2, id="over the batch"
        ),
    ],
)
def test_what_gives_something_else_is_left_alone(parameters: str, body: str, rank: int) -> None:
    code = f"{HEAD}def f(x{parameters}):\n    {body}\n"
    assert changed(code, rank) == code


def test_a_norm_of_as_many_dimensions_as_the_run_had() -> None:
    """The mean of the last two dimensions is all of a sample for three, and for four it is not."""
    code = f"{HEAD}def f(x, g):\n    v, m = torch.var_mean(x, (-2, -1), correction=0, keepdim=True)\n"
    code += "    return g * (x - m) / (v + EPS).sqrt()\n"
    assert "F.group_norm(x, 1, g.flatten(), None, EPS)" in changed(code, 3)
    assert "group_norm" not in changed(code, 4)


@pytest.mark.parametrize("decorator", ["@torch.jit.script", "@torch.compile"])
def test_what_is_compiled_already_is_left_alone(decorator: str) -> None:
    code = f"{HEAD}{decorator}\ndef f(x):\n    return x * torch.sigmoid(x)\n"
    assert changed(code, 2) == code
    assert changed(code.replace(decorator, "@staticmethod"), 2) != code


def test_a_backward_of_the_scripts_own_keeps_its_forward() -> None:
    code = f"{HEAD}def forward(ctx, x):\n    ctx.save_for_backward(x)\n    return x * torch.sigmoid(x)\n"
    assert changed(code, 2) == code


@pytest.mark.parametrize(("default", "known"), [("1e-6", True), ("1e-2", False), ("None", False)])
def test_a_number_beside_the_deviation_is_to_be_small(default: str, known: bool) -> None:
    code = f"{HEAD}class Norm:\n    def __init__(self, n, eps={default}):\n        self.eps = eps\n\n"
    code += "    def forward(self, x):\n"
    code += "        return self.w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.b\n"
    draft = Drafts(Sources({"/nowhere/train.py": code}))["/nowhere/train.py"]
    found = written_out(draft, code[: code.index("    def forward")].count("\n") + 1, 3)
    assert bool(found) is known


SCRIPT = """\
import math
import torch
from torch import nn

torch.set_num_threads(1)


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + self.eps) + self.b


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = {norm}(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down({gelu})


net = nn.Sequential(*[Block() for _ in range(3)])
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(200):
    loss = net(torch.randn(16, 64, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WRITTEN = "0.5 * h * (1 + torch.erf(h / math.sqrt(2)))"


def findings(folder: Path, **parts: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(**parts))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(WrittenOutFunctions().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_norm_and_an_activation_are_found_in_a_run(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, norm="LayerNorm", gelu=WRITTEN)
    assert finding.evidence["functions"] == 2 and finding.evidence["calls_per_step"] == 6
    assert finding.site is not None and finding.site.line == 27  # 256 numbers of each row, where the norm has 64
    assert finding.gain.likely > 1.3
    fix = WrittenOutFunctions().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = fix.texts[str(tmp_path / "train.py")]
    assert "self.down(nn.functional.gelu(h))" in text and "return nn.functional.layer_norm(x, x.shape[-1:]," in text


@pytest.mark.slow
@pytest.mark.sessions
def test_torchs_own_are_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path, norm="nn.LayerNorm", gelu="nn.functional.gelu(h)") == []
