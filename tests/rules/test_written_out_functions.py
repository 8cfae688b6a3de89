"""Norms and activations that are written out are known by what they give, and torch's own function gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Draft, Drafts, Edit, Sources
from advisor.edit.algebra.written_out import WrittenOut, call_instead, written_out
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Finding
from rules.written_out_functions import WrittenOutFunctions
from tests.conftest import PYTHON, QUICK

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\nEPS = 1e-5\n\n"
ROOT = "cdf = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))"
MEAN = "u = x.mean(-1, keepdim=True)\n    s = (x - u).pow(2).mean(-1, keepdim=True)"
BOTH = "m, v = x.mean((1, 2), keepdim=True), x.var((1, 2), unbiased=False, keepdim=True)"


Shapes = list[tuple[int, ...]]
LINE = HEAD.count("\n") + 1


def sizes(rank: int, *names: str) -> Shapes:
    """Of x, and of a weight and a bias of the last dimension, a gain of channels."""
    whole = (4, 6, 5, 7)[:rank]
    shapes = (
        {"x": whole, "w": whole[-1:], "b": whole[-1:], "g": (1, whole[1], *([1] * (rank - 2)))} if whole[1:] else {}
    )
    return [*(shapes[name] for name in names), whole][::-1]


def forms(code: str, shapes: Shapes, line: int = LINE) -> tuple[Draft, list[WrittenOut]]:
    draft = Drafts(Sources({"/nowhere/train.py": code}))["/nowhere/train.py"]
    return draft, written_out(draft, line, [tuple(shapes[::-1])])  # in whatever order


def changed(code: str, shapes: Shapes, line: int = LINE) -> str:
    """The function's text where torch's own functions are called."""
    draft, found = forms(code, shapes, line)
    return draft.render() if found and not any(call_instead(draft, each) for each in found) else code


def results(code: str, shapes: Shapes, scale: float) -> list[torch.Tensor]:
    """What the function gives, and the gradients of what it is given."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    torch.manual_seed(0)
    x = (scale * torch.randn(shapes[0], dtype=torch.float64)).requires_grad_()
    given = [torch.rand(each, dtype=torch.float64, requires_grad=True) for each in shapes[1:]]
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
            "F.layer_norm(x, x.shape[-1:], w, b, 1e-6)",
        ),
        (
            ", w, b",
            f"{MEAN}\n    y = (x - u) / torch.sqrt(s + 1e-6)\n    y *= w\n    y += b\n    return y",
            4,
            "F.layer_norm(x, x.shape[-1:], w, b, 1e-6)",
        ),
        (
            ", w, b",
            "v = x.var(-1, keepdim=True)\n    return w * (x - x.mean(-1, keepdim=True)) / (v + 1e-3).sqrt() + b",
            2,
            "F.layer_norm(x, x.shape[-1:], w * (1 - 1 / x.shape[-1]) ** 0.5, b, 1e-3 * (1 - 1 / x.shape[-1]))",
        ),
        ("", "e = torch.exp(x)\n    return e / e.sum(-2, keepdim=True)", 3, "torch.softmax(x, -2)"),
        (
            ", w, b",
            "return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b",
            2,
            "F.layer_norm(x, x.shape[-1:], w * (1 - 1 / x.shape[-1]) ** 0.5, b, 1e-6 ** 2)",
        ),
        (
            ", w",
            f"{MEAN}\n    return (x - u) * (s + EPS).rsqrt() * w",
            2,
            "F.layer_norm(x, x.shape[-1:], w, None, EPS)",
        ),
        ("", f"{BOTH}\n    return (x - m) / (v + EPS).sqrt()", 3, "F.group_norm(x, 1, eps=EPS)"),
        ("", f"{BOTH}\n    return (x - m) / v.sqrt()", 3, "F.group_norm(x, 1, eps=0.0)"),
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
    shapes = sizes(rank, *parameters.replace(",", " ").split())
    edited = changed(code, shapes)
    assert edited == f"{HEAD}def f(x{parameters}):\n    return {after}\n"
    near = 2e-3 if " ** 2" in after else 2e-6  # of a deviation of 1e-2 a millionth is 1e-4
    for scale in (1.0, 1e-2):  # of small numbers an epsilon tells
        for one, other in zip(results(code, shapes, scale), results(edited, shapes, scale), strict=True):
            torch.testing.assert_close(one, other, rtol=near, atol=near)


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
        pytest.param("", "y = x\n    y *= 1 / (1 + torch.exp(-x))\n    return y", 2, id="in place by another name"),
        pytest.param(
            "",
            "y = x * 1\n    z = y\n    y += x\n    gate = 1 / (1 + torch.exp(-z))\n    return z * gate",
            2,
            id="in place by an older name",
        ),
        pytest.param("", "y = x.view(-1)\n    y *= 1 / (1 + torch.exp(-x))\n    return y", 1, id="in place in a view"),
        pytest.param("", "e = x.exp()\n    return e / e.sum(1, keepdim=True)", 1, id="no such dimension"),
        pytest.param("", f"{BOTH}\n    return (x - m) / (v + 1e-6 + 1e-7).sqrt()", 3, id="two epsilons"),
        pytest.param("", "return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)", 3, id="over the places"),
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
    shapes = sizes(rank, *parameters.replace(",", " ").replace("y", "x").split())
    for summed in ([], [(*shapes[0][:-1], 1)]):  # what sums may leave
        assert changed(code, [*shapes, *summed]) == code


def test_a_norm_of_as_many_dimensions_as_the_run_had() -> None:
    """The mean of the last two dimensions is all of a sample for three, and for four it is not."""
    code = f"{HEAD}def f(x, g):\n    v, m = torch.var_mean(x, (-2, -1), correction=0, keepdim=True)\n"
    code += "    return g * (x - m) / (v + EPS).sqrt()\n"
    assert "F.group_norm(x, 1, g.flatten(), None, EPS)" in changed(code, sizes(3, "g"))
    assert changed(code, sizes(4, "g")) == code


@pytest.mark.parametrize("decorator", ["@torch.jit.script", "@torch.compile"])
def test_what_is_compiled_already_is_left_alone(decorator: str) -> None:
    code = f"{HEAD}{decorator}\ndef f(x):\n    return x * torch.sigmoid(x)\n"
    assert changed(code, sizes(2)) == code
    assert changed(code.replace(decorator, "@staticmethod"), sizes(2)) != code


def test_a_backward_of_the_scripts_own_keeps_its_forward() -> None:
    code = f"{HEAD}def forward(ctx, x):\n    ctx.save_for_backward(x)\n    return x * torch.sigmoid(x)\n"
    assert changed(code, sizes(2)) == code


NORM = """\
class Norm:
    def __init__(self, n, eps={default}):
        self.eps = {given}

    def forward(self, x):
        return self.w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.b


{use}
"""


@pytest.mark.parametrize(
    ("default", "given", "use", "known"),
    [
        ("1e-6", "eps", "Norm(5)", True),
        ("None", "1e-6", "", True),
        ("1e-2", "eps", "", False),
        ("None", "eps", "", False),
        ("1e-6", "max(eps, 1e-2)", "", False),
        ("1e-6", "nn.Parameter(torch.ones(1))", "", False),
        ("1e-6", "eps", "Norm(5, eps=0.1)", False),
        ("1e-6", "eps", "Norm(5, 0.1)", False),
        ("1e-6", "eps", "class Wide(Norm):\n    pass", False),
    ],
)
def test_a_number_beside_the_deviation_is_to_be_small(default: str, given: str, use: str, known: bool) -> None:
    code = HEAD + NORM.format(default=default, given=given, use=use)
    line = code[: code.index("    def forward")].count("\n") + 1
    assert bool(forms(code, sizes(3, "w", "b"), line)[1]) is known
    inside = code.replace("(x.std(-1, keepdim=True) + self.eps)", "torch.sqrt(x.var(-1, keepdim=True) + self.eps)")
    number = given == "1e-6" or (given == "eps" and default != "None")
    assert bool(forms(inside, sizes(3, "w", "b"), line)[1]) is number  # there any number will do


@pytest.mark.parametrize(
    ("weight", "known"),
    [((5,), True), ((1,), False), ((1, 1, 5), False), ((4, 1, 5), False), ((6, 1), False), ((), False)],
)
def test_weights_are_to_be_such_as_the_call_takes(weight: tuple[int, ...], known: bool) -> None:
    code = f"{HEAD}def f(x, w, b):\n    {MEAN}\n    return w * (x - u) / torch.sqrt(s + EPS) + b\n"
    assert (changed(code, [(4, 6, 5), (4, 6, 1), weight, weight]) != code) is known


@pytest.mark.parametrize(
    ("weight", "known"),
    [((1, 6, 1), True), ((6, 1), True), ((5,), False), ((1, 1, 5), False), ((6, 5), False), ((1, 6, 5), False)],
)
def test_weights_of_channels_are_to_be_such(weight: tuple[int, ...], known: bool) -> None:
    code = f"{HEAD}def f(x, g):\n    {BOTH}\n    return g * (x - m) / (v + EPS).sqrt()\n"
    assert (changed(code, [(4, 6, 5), (4, 1, 1), weight]) != code) is known


@pytest.mark.parametrize(
    ("rest", "known"),
    [
        ("w * (x - u) / torch.sqrt(s + EPS) + b", True),
        ("w * (x - u) / torch.sqrt(s + EPS) + y", False),
        ("(x - u) / torch.sqrt(s + EPS) * y + b", False),
    ],
)
def test_what_is_added_may_be_no_weight(rest: str, known: bool) -> None:
    given = ", w, b" if known else ", w, y" if "y" in rest.split("+")[-1] else ", y, b"
    code = f"{HEAD}def f(x{given}):\n    {MEAN}\n    return {rest}\n"
    shapes = [(4, 6, 5), (5,), (5,) if known else (4, 6, 5)]
    assert (changed(code, shapes) != code) is known


def test_every_kind_of_call_is_to_fit() -> None:
    """Two widths are one norm; of two numbers of dimensions, or with a weight that varies, it is left alone."""
    code = f"{HEAD}def f(x, w, b):\n    {MEAN}\n    return w * (x - u) / torch.sqrt(s + EPS) + b\n"
    draft = Drafts(Sources({"/nowhere/train.py": code}))["/nowhere/train.py"]
    wide, other = ((4, 6, 8), (8,), (8,), (4, 6, 1)), ((4, 6, 5), (5,), (5,), (4, 6))
    assert written_out(draft, LINE, [wide, other])
    assert not written_out(draft, LINE, [wide, ((4, 5), (5,), (5,))])
    assert not written_out(draft, LINE, [wide, ((4, 6, 5), (4, 1, 5), (5,))])


def test_a_softmax_with_an_epsilon_is_none() -> None:
    """Rows of which all is masked are zeros in one, and no numbers in the other."""
    code = f"{HEAD}def f(x):\n    e = torch.exp(x)\n    return e / (e.sum(-1, keepdim=True) + 1e-12)\n"
    assert changed(code, sizes(2)) == code
    assert changed(code.replace(" + 1e-12", ""), sizes(2)) != code


def test_an_epsilon_is_told_from_none_at_any_size() -> None:
    code = f"{HEAD}def f(x, w):\n    return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-12)\n"
    assert "None, 1e-12 ** 2)" in changed(code, sizes(2, "w"))


@pytest.mark.parametrize(
    ("call", "known"),
    [("f(x, w, b)", True), ("f(x, w, b, 1e-2)", False), ("f(x, w, b, eps=1e-2)", False), ("f(*given)", False)],
)
def test_an_epsilon_that_is_given_may_be_another(call: str, known: bool) -> None:
    code = f"{HEAD}def f(x, w, b, eps=1e-6):\n    u = x.mean(-1, keepdim=True)\n"
    code += f"    return w * (x - u) / (x.std(-1, keepdim=True) + eps) + b\n\ny = {call}\n"
    assert (changed(code, sizes(3, "w", "b")) != code) is known


@pytest.mark.parametrize(
    ("rest", "known"),
    [
        ("x = x + g(f(x))", True),
        ("x += g(f(x))", False),
        ("y = f(x)\n    y *= mask", False),
        ("y = f(x)\n    y[mask] = 0", False),
        ("return f(x).mul_(mask)", False),
        ("return f(x).mul(mask)", True),
        ("n = 0\n    n += 1\n    return f(x)", True),
    ],
)
def test_what_is_kept_for_the_backward_stays_as_it_is(rest: str, known: bool) -> None:
    code = f"{HEAD}def f(x):\n    {BOTH}\n    return (x - m) / (v + EPS).sqrt()\n\ndef h(x, mask, g):\n    {rest}\n"
    assert (changed(code, sizes(3)) != code) is known
    part = f"{HEAD}def h(self, x, mask):\n    h = self.up(x)\n    h = h * torch.sigmoid(h)\n    return h\n"
    assert changed(part, sizes(2)) != part
    after = part.replace("return h", "h *= mask\n    return h")
    assert changed(after, sizes(2)) == after


LAYER = (
    f"{HEAD}class Norm(nn.Module):\n    def f(self, x):\n        {BOTH}\n"
    "        return (x - m) / (v + EPS).sqrt()\n\n"
)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("for block, other in self.blocks:\n            x += block(x)", False),
        ("for block in self.blocks:\n            x = x + block(x)", True),
        ("h = self.block(x)\n        x += h", False),
        ("block = self.blocks[0]\n        h = block(x)\n        h *= 2", False),
        ("block = self.blocks[0]\n        h = block(x)\n        h *= x", False),
        ("steps = 0\n        steps += 1\n        log = self.log\n        log(steps)", True),
        ("return self.block(x).relu_()", False),
        ("x += torch.relu(x)", True),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_module_may_be_called_by_any_name(body: str, known: bool, elsewhere: bool) -> None:
    model = f"class Model(nn.Module):\n    def forward(self, x):\n        {body}\n        return x\n"
    code, other = (LAYER, f"import torch\n{model}") if elsewhere else (LAYER + model, "")
    drafts = Drafts(Sources({"/nowhere/train.py": code, "/nowhere/model.py": other}))
    draft = drafts["/nowhere/train.py"]
    (found,) = written_out(draft, LINE + 1, [tuple(sizes(3)[::-1])])
    assert (call_instead(draft, found, [drafts["/nowhere/model.py"]]) == "") is known


def test_names_of_the_module_may_be_those_of_arguments() -> None:
    code = f"{HEAD}dim, mean = 64, 0.1307\n\ndef f(x, w, b):\n    mean = x.mean(dim=-1, keepdim=True)\n"
    code += (
        "    var = x.var(dim=-1, unbiased=False, keepdims=True)\n    return w * (x - mean) / (var + 1e-5).sqrt() + b\n"
    )
    assert "F.layer_norm(x, x.shape[-1:], w, b, 1e-5)" in changed(code, sizes(3, "w", "b"), LINE + 2)


@pytest.mark.parametrize(
    ("imported", "text"),
    [
        ("import torch", "x * torch.sigmoid(x)"),
        ("from torch import sigmoid", "x * sigmoid(x)"),
        ("import torch", "x.sigmoid() * x"),
        ("import torch", "x / (1 + torch.exp(-x))"),
        ("import torch, math", "0.5 * x * (1 + torch.erf(x / math.sqrt(2)))"),
        ("import torch, math", "x * (1.0 + (x * math.sqrt(0.5)).erf()).mul(0.5)"),
        ("import torch", "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))"),
    ],
)
def test_the_operators_are_those_of_a_trace(imported: str, text: str) -> None:
    code = f"{imported}\ndef f(net, x):\n    x = net(x)\n    return net({text})\n"
    (found,) = forms(code, [(4, 6)], 2)[1]
    scope: dict[str, Any] = {}
    exec(code, scope)
    x = torch.rand(4, 6)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        scope["f"](lambda x: x, x)
    outer = [each for each in profile.events() if each.cpu_parent is None and each.name.startswith("aten::")]
    assert found.operators == tuple(each.name for each in sorted(outer, key=lambda each: each.time_range.start))


def test_what_another_changes_is_no_constant() -> None:
    code = f"{HEAD}BETA = 1.0\n\ndef f(x):\n    return x * torch.sigmoid(BETA * x)\n"
    assert changed(code, sizes(2), LINE + 2) == code
    norm = f"{HEAD}def f(x):\n    {BOTH}\n    return (x - m) / (v + EPS).sqrt()\n"
    assert changed(norm, sizes(3)) != norm
    moved = f"{norm}\ndef anneal():\n    global EPS\n    EPS *= 0.9\n"
    assert changed(moved, sizes(3)) == moved


def test_a_root_of_one_dimension_tells_activations_apart() -> None:
    code = f"{HEAD}def f(x):\n    {ROOT}\n    return x * cdf\n"
    assert 'F.gelu(x, approximate="tanh")' in changed(code, [(12,)])
    rough = code.replace("(x + 0.044715 * x ** 3)", "x")
    assert changed(rough, [(12,)]) == rough


def test_a_gate_of_the_same_operations_hides_what_an_activation_takes() -> None:
    code = f"{HEAD}def f(self, x):\n    h = self.up(x)\n    h = h * torch.sigmoid(h)\n    return self.down(h)\n"
    _, (found,) = forms(code, sizes(2))
    assert found.operators == ("aten::sigmoid", "aten::mul")
    gated = code.replace("self.down(h)", "self.down(h) * torch.sigmoid(self.gate(x))")
    assert forms(gated, sizes(2))[1] == []


def test_names_and_parentheses_stay_what_they_are() -> None:
    code = f"{HEAD}def f(self, x):\n    F, T = x.shape\n    h = self.up(x)\n    if(h * torch.sigmoid(h)).sum() > 0:\n"
    code += "        pass\n    return h\n"
    assert "if(torch.nn.functional.silu(h)).sum() > 0:" in changed(code, sizes(2))
    hidden = code.replace("F, T = x.shape", "F, torch = x.shape").replace("torch.sigmoid(h)", "h.sigmoid()")
    assert changed(hidden, sizes(2)) == hidden


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
