"""Float32 that a model makes itself: whether it meets weights in 16 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Advice, Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "half-inference")
HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from embedding import plain, sinusoid

def frequencies(t, dim):
    steps = torch.exp(-math.log(1e4) * torch.arange(0, dim, dtype=torch.float32) / dim)
    return torch.outer(t, steps)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.sqrt(torch.FloatTensor([64]))

    def forward(self, q, k, v):
        return F.softmax(q @ k.mT, dim=-1, dtype=torch.float32)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.arange(0, 8, dtype=torch.float32))
        self.norm = Norm(8, dtype=torch.float32)
        self.mean, self.half = torch.tensor([0.4, 0.5]).view(2, 1), torch.tensor(0.5)
        self.hidden = torch.full((8, 8), float("-inf")).triu(1)
        self.attention = Attention()
        self.layers = nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, x, q, k, v):
"""
MEETS = (
    "return self.fc(x - self.mean)",
    "return (q @ k.mT + self.hidden).softmax(-1) @ v",
    "return self.fc(x + torch.arange(8, dtype=torch.float32))",
    "return self.fc(x + torch.arange(0.0, 8.0))",
    "return self.fc(x * (torch.arange(8) / 8))",
    "return self.lstm(x, torch.zeros(4, 8, dtype=torch.float32))",
    "return F.softmax(q @ k.mT, dim=-1, dtype=torch.float32) @ v",
    "w = (q @ k.mT).softmax(-1, dtype=torch.float)\nreturn torch.matmul(w, v)",
    "x = x.to(torch.float32) ** 2\nreturn self.fc(self.dropout(x))",
    "x = x.to(torch.float32)\nfor layer in self.layers:\n    x = layer(x)\nreturn x",
    "x = self.fc(x)\nfor i in range(2):\n    x = self.fc(x)\n    x = x + torch.ones(8, dtype=torch.float32)\nreturn x",
    "return self.layers[0](x.type(torch.float32))",
    "return self.fc(frequencies(x, 8))",
    "return self.fc(sinusoid(x))",
    "return self.attention(q, k, v) @ v",
    "return (q @ k.mT / self.scale).softmax(-1) @ v",
    "cos = torch.ones(8, dtype=torch.float32)\nreturn F.scaled_dot_product_attention(q * cos, k * cos, v)",
)
CONVERTED = (
    "return self.fc(x * self.half)",  # of no dimension
    "return self.fc(x + torch.arange(8, dtype=torch.float32).to(x.dtype))",
    "return self.fc((x + torch.arange(8, dtype=torch.float32)).type_as(x))",
    "w = F.softmax(q @ k.mT, dim=-1, dtype=torch.float32)\nw = w.to(q.dtype)\nreturn w @ v",
    "w = F.softmax(q @ k.mT, dim=-1, dtype=torch.float32)\nw = w.to(q.dtype)\nw = self.dropout(w)\nreturn w @ v",
    "return F.softmax(q @ k.mT, dim=-1, dtype=torch.float32).to(q) @ v",
    "x = self.fc(x)\nx = x * torch.ones(8, dtype=torch.float32)\nreturn x",
    "dtype = x.dtype\nx = x.to(torch.float32)\nx = x * x.pow(2).mean().rsqrt()\nreturn self.fc(x.to(dtype))",
    "return self.fc(frequencies(x, 8).to(device=x.device, dtype=x.dtype))",
    "return self.fc(plain(x))",
    "return self.attention(q, k, v).type_as(v) @ v",
    "return self.norm(self.fc(x * self.steps))",
    "return self.embedding(torch.arange(8))",
    "return self.embedding((x.to(torch.float32) * 8).long())",
    "return self.fc(x[x.to(torch.float32) > 1])",
    "return self.fc(x).softmax(-1, dtype=torch.float32)",  # converted outside in any case
)


def _fix(code: str, folder: Path, made: str = "Net()", then: str = "") -> object:
    (folder / "embedding.py").write_text(
        "import torch\n\ndef sinusoid(t):\n    return torch.outer(t, torch.arange(8, dtype=torch.float32)).sin()\n\n"
        "def plain(t):\n    return sinusoid(t).to(t.dtype)\n"
    )
    text = HEAD + "".join(f"        {line}\n" for line in code.split("\n"))
    text += f"\nnet = {made}  # <- made={made}\n{then}y = net(x)  # <- forward=net(x)\n"
    path = folder / "infer.py"
    before, finding = rulecheck.marked(RULE, Example(text, "", {"floats": True, "output": "tensor"}), path)
    path.write_text(before)
    return RULE.fix(replace(finding, parameters={**finding.parameters, "class": made.partition("(")[0]}), Sources())


@pytest.mark.parametrize("code", MEETS)
def test_float32_does_not_meet_other_weights(code: str, tmp_path: Path) -> None:
    fix = _fix(code, tmp_path)
    assert isinstance(fix, Advice) and "tensors made in float32 meet bfloat16 ones at infer.py:" in fix.why


@pytest.mark.parametrize("code", CONVERTED)
def test_what_is_converted_back_goes_on(code: str, tmp_path: Path) -> None:
    assert isinstance(_fix(code, tmp_path), Edit)


@pytest.mark.parametrize("code", ["x[:, 0].long()", "x[:, 0].to(torch.int64)", "F.one_hot(x)"])
def test_numbers_of_rows_among_floats_stay_what_they_are(code: str, tmp_path: Path) -> None:
    fix = _fix(f"return self.embedding({code})", tmp_path)
    assert isinstance(fix, Advice) and fix.why.startswith("whole numbers are made of floats")


def test_what_the_script_makes_in_float32_is_converted_at_the_call(tmp_path: Path) -> None:
    fix = _fix("return self.fc(x)", tmp_path, then="rows = torch.rand(8, 8, dtype=torch.float32)\nnet(rows)\n")
    assert isinstance(fix, Edit) and "net(rows.to(torch.bfloat16)).float()" in fix.texts[str(tmp_path / "infer.py")]


def test_float32_that_another_module_may_take(tmp_path: Path) -> None:
    code, made = "return self.fc(x).to(torch.float32)", "Sequential(Net(), nn.Linear(8, 8))"
    assert isinstance(_fix(code, tmp_path), Edit)
    assert isinstance(_fix(code, tmp_path, made), Advice)
