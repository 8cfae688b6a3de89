"""Fills that 16 bits cannot hold: where autocast, or a conversion of the weights, would make PyTorch raise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Advice, Example
from advisor.rulebook import load_rules

RULES = {each.id: each for each in load_rules()}
SCRIPT = """
import torch
import torch.nn.functional as F

NEGATIVE = -1e9

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blank = -1e9

    def forward(self, q, k, v, mask, low=-1e30):
        s = q @ k.transpose(-2, -1)
        {code}
        return s.softmax(-1) @ v

net = Attention()  # <- made
for x in xs:
    out = net(x)  # <- forward=net(x)
"""
TOO_LARGE = (
    "s = s.masked_fill(mask == 0, -1e9)",
    "s.masked_fill_(mask == 0, value=-1e9)",
    "s = torch.masked_fill(s, mask == 0, -70000)",
    "s = torch.matmul(q, k).masked_fill(mask, -1e9)",
    "s[mask == 0] = -1e9",
    "s = s.masked_fill(mask == 0, NEGATIVE)",
    "s = s.masked_fill(mask == 0, self.blank)",
    "s = s.masked_fill(mask == 0, low)",
    "low = -(2**32) + 1; s = s.masked_fill(mask == 0, low)",
    "s = s + torch.full_like(s, -1e9).triu(1)",
    "s = s + torch.full(s.shape, -1e9, dtype=s.dtype).triu(1)",
    "s = s + s.new_full(s.shape, -1e9).triu(1)",
    "s = F.pad(s, (0, 1), value=-1e9)",
)
HELD = (
    "s = s.masked_fill(mask == 0, -1e4)",
    "s = s.masked_fill(mask == 0, float('-inf'))",
    "s = s.masked_fill(mask == 0, torch.finfo(s.dtype).min)",
    "s = s + (1 - mask) * -1e9",  # gives an infinity, and raises nothing
    "s = torch.where(mask == 0, -1e9, s)",  # likewise
    "s = s.type(torch.float64).masked_fill(mask == 0, -1e9).to(v.dtype)",
    "t = s.to(torch.float32); s = t.masked_fill(mask == 0, -1e9).to(v.dtype)",
    "labels = torch.full((4,), 10 ** 6, dtype=torch.long)",
)
FLOAT32_UNDER_AUTOCAST = (
    "s = F.cosine_similarity(q, k, dim=-1); s.masked_fill_(mask, -1e9)",
    "s = s + torch.zeros(4, 4).masked_fill(mask == 0, -1e9)",
    "s = s + torch.full((4, 4), -1e9).triu(1)",
)
LOWEST = "s = s.masked_fill(mask == 0, torch.finfo(torch.float32).min)"


def _fix(rule: str, code: str, dtype: str, folder: Path) -> object:
    parameters = {"dtype": dtype, "floats": True, "output": "tensor", "class": "Attention"}
    text = SCRIPT.replace("{code}", code.replace("; ", "\n        "))
    path = folder / "train.py"
    before, finding = rulecheck.marked(RULES[rule], Example(text, "", parameters), path)
    path.write_text(before)
    return RULES[rule].fix(finding, Sources())


@pytest.mark.parametrize("rule", ["amp-autocast", "half-inference"])
@pytest.mark.parametrize("code", [*TOO_LARGE, LOWEST])
def test_float16_is_not_filled_with_what_it_cannot_hold(code: str, rule: str, tmp_path: Path) -> None:
    fix = _fix(rule, code, "float16", tmp_path)
    assert isinstance(fix, Advice) and "train.py fills a tensor" in fix.why


@pytest.mark.parametrize("rule", ["amp-autocast", "half-inference"])
@pytest.mark.parametrize("code", HELD)
def test_what_float16_holds_goes_on(code: str, rule: str, tmp_path: Path) -> None:
    assert isinstance(_fix(rule, code, "float16", tmp_path), Edit)


@pytest.mark.parametrize("code", FLOAT32_UNDER_AUTOCAST)
def test_what_autocast_leaves_in_float32_holds_anything(code: str, tmp_path: Path) -> None:
    assert isinstance(_fix("amp-autocast", code, "float16", tmp_path), Edit)


@pytest.mark.parametrize("rule", ["amp-autocast", "half-inference"])
def test_bfloat16_holds_all_but_the_lowest_of_float32(rule: str, tmp_path: Path) -> None:
    assert isinstance(_fix(rule, LOWEST, "bfloat16", tmp_path), Advice)
    for code in TOO_LARGE:
        assert isinstance(_fix(rule, code, "bfloat16", tmp_path), Edit)


def test_a_tensor_of_one_number_is_no_other_fill(tmp_path: Path) -> None:
    code = "s = s.masked_fill(mask == 0, torch.tensor(-1e9))"
    assert isinstance(_fix("amp-autocast", code, "float16", tmp_path), Advice)
    assert isinstance(_fix("amp-autocast", code, "bfloat16", tmp_path), Edit)


def test_a_fill_in_another_file_of_the_models(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("def attend(s, mask):\n    return s.masked_fill(mask, -1e9).softmax(-1)\n")
    rule, path = RULES["amp-autocast"], tmp_path / "train.py"
    before, finding = rulecheck.marked(rule, Example("import torch\nout = net(x)  # <- forward\n", ""), path)
    path.write_text(before)
    for framework in ("", "lightning"):
        own = {"own": (str(tmp_path / "layers.py"),), "dtype": "float16", "framework": framework}
        fix = rule.fix(replace(finding, parameters=finding.parameters | own), Sources())
        assert isinstance(fix, Advice) and "layers.py fills a tensor with -1e9 at line 2" in fix.why


def test_outputs_that_are_float32_again_hold_anything(tmp_path: Path) -> None:
    text = "import torch\nnet = Net()  # <- made\nout = net(x)  # <- forward\nout.masked_fill_(mask, -1e9)\n"
    rule, path = RULES["half-inference"], tmp_path / "train.py"
    before, finding = rulecheck.marked(rule, Example(text, "", {"dtype": "float16", "output": "tensor"}), path)
    path.write_text(before)
    assert isinstance(rule.fix(finding, Sources()), Edit)
