"""Attention by hand: seen in the run, found in the source, and the same numbers afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from advisor.rules.attention_sdpa import AttentionSdpa

from advisor.edit import Draft, Drafts, Edit, Sources
from advisor.edit.algebra.attention import attentions, fuse
from advisor.edit.algebra.attention_flow import written_out
from advisor.edit.algebra.attention_weights import leave_weights, unread_weights
from advisor.evidence import Evidence
from advisor.harness.layout import Site
from advisor.rule import Advice, Finding, Gain

LAYER = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 16 ** -0.5
        self.drop = nn.Dropout(0.0)
        self.soft = nn.Softmax(dim=-1)
        self.register_buffer("causal", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))
        lower = torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)
        self.register_buffer("lower", lower)

    def forward(self, q, k, v, mask=None):
        T = q.size(-2)
        BODY
"""
BODIES = {
    "causal": """att = q @ k.transpose(-2, -1) * self.scale
        att = att.masked_fill(self.causal[:, :, :T, :T] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return att @ v""",
    "lower": """att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.lower[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return y.transpose(1, 2)""",
    "masked": """scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.soft(scores)
        weights = F.dropout(weights, p=0.0, training=self.training)
        out = torch.matmul(weights, v)
        return out.transpose(1, 2)""",
    "inverted": """s = q.matmul(k.mT)
        s /= 4.0
        s.masked_fill_(~(mask > 0), torch.finfo(s.dtype).min)
        return s.softmax(dim=-1).matmul(v)""",
    "added": """q = q * self.scale
        a = q @ k.mT + (1.0 - mask) * -10000.0
        a = torch.softmax(a, dim=-1) @ v
        return a * 2""",
}


def scene_of(
    scene: Any,
    folder: Path,
    scores_ms: float,
    dropout: bool = False,
    body: str = BODIES["causal"],
    values: int = 16,
    length: int = 64,
) -> Evidence:
    """A CPU run whose steps spend so many of their 50 ms on scores of 2x4x64x64, or so many tokens."""
    made = scene(50.0)
    path = folder / "layer.py"
    path.write_text(LAYER.replace("BODY", body))
    made.record.models[0].own = {"Attention": str(path)}
    dims = {"Input Dims": [[2, 4, length, length], [], []]}
    made.each("cpu_op", "aten::bmm", 1.0, 2.0, **{"Input Dims": [[8, length, length], [8, length, values]]})
    made.each("cpu_op", "aten::bmm", 2.0, 3.0, **{"Input Dims": [[8, length, 16], [8, 16, length]]})
    made.each("cpu_op", "aten::_softmax", 3.0, 3.0 + scores_ms, **dims)
    if dropout:
        made.each("cpu_op", "aten::native_dropout", 3.0 + scores_ms, 3.5 + scores_ms, **dims)
    made.operator("aten::addmm", 4.0 + scores_ms, 49.9)
    evidence = made.evidence(folder)
    return dataclasses.replace(evidence, detail=evidence.trace)


def found(evidence: Evidence) -> Finding | None:
    findings = list(AttentionSdpa().check(evidence))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def test_scores_that_cost_are_found_where_they_are_written(scene: Any, tmp_path: Path) -> None:
    finding = found(scene_of(scene, tmp_path, 20.0))
    assert finding is not None and finding.site is not None
    text = (tmp_path / "layer.py").read_text().split("\n")
    assert "att @ v" in text[finding.site.line - 1]
    assert finding.evidence["scores_shape"] == "2x4x64x64" and finding.gain.likely > 1.3
    assert isinstance(AttentionSdpa().fix(finding, Sources()), Edit)


def test_of_scores_that_get_their_pages_anew_the_products_go_too(scene: Any, tmp_path: Path) -> None:
    few, many = (found(scene_of(scene, tmp_path, 20.0, length=length)) for length in (960, 1024))  # 29 and 34 MB
    assert few is not None and many is not None
    # Of 22 ms on the scores, 2 in products, a fifth is left; with smaller ones a fifth of 20, and half of the products.
    assert many.gain.likely == pytest.approx(50 / (50 - 0.8 * 22), rel=0.03)
    assert few.gain.likely == pytest.approx(50 / (50 - 0.8 * 20 - 0.5 * 2), rel=0.03)


def test_scores_that_cost_nothing_are_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(scene_of(scene, tmp_path, 0.5)) is None


@pytest.mark.parametrize(("values", "reported"), [(16, True), (64, False), (8, False)])
def test_values_of_another_width_have_no_fused_kernel_on_a_cpu(
    values: int, reported: bool, scene: Any, tmp_path: Path
) -> None:
    assert (found(scene_of(scene, tmp_path, 20.0, values=values)) is not None) is reported


def test_dropout_of_the_weights_on_a_cpu_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(scene_of(scene, tmp_path, 20.0, dropout=True)) is None


ADDED = """a = q @ k.mT * 0.25
        bias = ADDED
        a = a + bias[:, :, :T, :T]
        return a.softmax(-1) @ v

    def made(self):
        self.table = nn.Parameter(torch.zeros(1, 4, 64, 64))
        self.positions = nn.Embedding(64, 4)
        self.slopes = torch.zeros(1, 4, 64, 64)"""


@pytest.mark.parametrize(
    ("added", "reported"),
    [("self.slopes", True), ("self.table", False), ("self.positions(T)", False), ("self.causal * 1.0", True)],
)
def test_a_learned_mask_has_no_fused_kernel_in_training(added: str, reported: bool, scene: Any, tmp_path: Path) -> None:
    evidence = scene_of(scene, tmp_path, 20.0, body=ADDED.replace("ADDED", added))
    assert (found(evidence) is not None) is reported


def test_attention_of_a_library_is_left_alone(scene: Any, tmp_path: Path) -> None:
    evidence = scene_of(scene, tmp_path, 20.0)
    assert evidence.record is not None
    evidence.record.models[0].own = {}
    assert found(evidence) is None


@pytest.mark.parametrize("body", BODIES)
def test_the_fused_layer_computes_the_same(body: str) -> None:
    text = LAYER.replace("BODY", BODIES[body])
    drafts = Drafts(Sources({"/nowhere/layer.py": text}))
    draft = drafts["/nowhere/layer.py"]
    (attention,) = attentions(draft)
    assert fuse(draft, attention, 4)
    fused = draft.render()
    assert ("is_causal=True" in fused) == (body in ("causal", "lower"))
    assert "scaled_dot_product_attention" in fused and "softmax(" not in fused.lower().replace("nn.softmax(dim", "")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 64, 16) for _ in range(3))
    mask = (torch.rand(2, 1, 64, 64) > 0.3).float()
    mask[..., 0] = 1.0
    mask[0, :, :4] = 0.0  # masked altogether, by finite numbers: the mean of the values
    outputs = []
    for source in (text, fused):
        space: dict[str, Any] = {}
        exec(source, space)
        outputs.append(space["Attention"]()(q, k, v, mask))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


TRIANGLE = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16))

class Attention(nn.Module):
    def __init__(self, n=64):
        super().__init__()
        INIT
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, q, k, v):
        T = q.size(-2)
        att = q @ k.transpose(-2, -1) / 4.0
        att = att.masked_fill(self.bias[..., :T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1) @ v
"""
WIDE = "lower = torch.tril(torch.ones(n, n)).view(1, 1, n, n); self.register_buffer('bias', lower); "
# What makes the mask; whether it is the causal one.
MASKS = {
    "self.register_buffer('bias', torch.tril(torch.ones(n, n)).view(1, 1, n, n))": True,
    "self.register_buffer('bias', torch.tril(torch.ones((n, n), dtype=torch.uint8))[None, None, :, :].bool())": True,
    "self.register_buffer('bias', torch.tril(torch.ones(1, 1, n, n)).to(torch.bool), persistent=False)": True,
    "self.register_buffer('bias', torch.tril(torch.ones(n, n)).unsqueeze(0).unsqueeze(0))": True,
    "self.register_buffer('bias', torch.tril(torch.ones(n, n), 8).view(1, 1, n, n))": False,
    "self.register_buffer('bias', torch.tril(torch.ones(n, n), diagonal=2).view(1, 1, n, n))": False,
    "self.register_buffer('bias', torch.tril(torch.ones(n, n)) - torch.tril(torch.ones(n, n), -8))": False,
    "self.register_buffer('bias', torch.tril(torch.ones(n, n)).triu(-8).view(1, 1, n, n))": False,
    "self.register_buffer('bias', torch.tril(torch.ones(1, n)).view(1, 1, 1, n).expand(1, 1, n, n))": False,
    WIDE + "lower[..., :8, :8] = 1": False,
    WIDE + "lower.squeeze()[:4, :4] = 1": False,
    WIDE + "part = lower[0, 0, :8]; part.fill_(1)": False,
    WIDE + "self.bias.squeeze()[:, 1::2] = 0": False,
    WIDE + "self.bias[..., :8, :8] += 1": False,
    WIDE + "self.bias.triu_(-8)": False,
    WIDE + "self.bias *= torch.triu(torch.ones(n, n), -8)": False,
    WIDE + "nn.init.ones_(self.bias[..., :8])": False,
    WIDE + "torch.triu(lower, -8, out=self.bias)": False,
    WIDE + "self.bias = self.bias.triu(-8)": False,
    WIDE + "view = self.bias[0, 0]; view[:8, :8] = 1": False,
}


@pytest.mark.parametrize("init", MASKS)
def test_only_the_plain_triangle_is_causal(init: str) -> None:
    text = TRIANGLE.replace("INIT", init)
    draft = Drafts(Sources({"/nowhere/layer.py": text}))["/nowhere/layer.py"]
    (attention,) = attentions(draft)
    assert attention.causal is MASKS[init] and bool(attention.mask) is not MASKS[init]
    assert fuse(draft, attention, 4)
    outputs = []
    for source in (text, draft.render()):
        space: dict[str, Any] = {}
        exec(source, space)
        torch.manual_seed(0)
        outputs.append(space["Attention"]()(*(torch.randn(2, 4, 32, 16) for _ in range(3))))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


SCALED = """
import math
import numpy as np
import torch
from torch import nn

def weigh(q, k, v, scale=None):
    if scale is None:
        scale = q.size(-1) ** -0.5
    return (q @ k.mT * scale).softmax(dim=-1) @ v

class Attention(nn.Module):
    def __init__(self, dim=16, heads=1, scale=None, **kwargs):
        super().__init__()
        self.learned = nn.Parameter(torch.ones(()))
        INIT

    def forward(self, q, k, v, PARAMETER=None):
        LINES
"""
# (in __init__, the forward's parameter, its lines up to the factor, below the class): whether the factor is a number.
LEARNED = "self.scale = nn.Parameter(torch.ones(()))"
FACTORS: dict[tuple[str, str, str, str], bool] = {
    ("self.scale = (dim // heads) ** -0.5", "x", "self.scale", ""): True,
    ("head_dim = dim // heads; self.scale = scale or head_dim ** -0.5", "x", "self.scale", ""): True,
    ("self.scale = scale if scale is not None else 1 / math.sqrt(dim)", "x", "self.scale", ""): True,
    ("self.head_dim, self.heads = dim // heads, heads", "x", "1 / np.sqrt(self.head_dim)", ""): True,
    ("self.c = kwargs['config']", "x", "self.c", ""): False,
    ("self.config = scale", "x", "self.config.head_dim ** -0.5", ""): True,
    ("pass", "x", "B, H, T, D = q.shape; scale = D ** -0.5; scale", ""): True,
    ("pass", "x", "scale = 1.0; scale /= math.sqrt(k.size(-1)); scale", ""): True,
    ("pass", "x", "sizes = q.size(); sizes[-1] ** -0.5", ""): True,
    ("pass", "x: float", "x", ""): True,
    ("pass", "y=0.5, x", "y", ""): True,
    ("pass", "x", "x", "attention = Attention()\nattention(q, k, v, 0.25)"): True,
    ("pass", "x", "x", "attention = Attention()\nattention(q, k, v, x=attention.learned.exp())"): False,
    ("pass", "y=0.5, x", "y", "attention = Attention()\nattention(q, k, v, torch.ones(()))"): False,
    ("pass", "x", "x", ""): False,
    ("pass", "x: torch.Tensor", "x", ""): False,
    ("self.t = scale", "x", "self.t", "Attention(scale=nn.Parameter(torch.ones(())))"): False,
    ("self.t = scale", "x", "self.t", "t = torch.ones(())\nAttention(16, 1, t)"): False,
    ("pass", "x", "scale = self.learned.exp().clamp(max=100); scale", ""): False,
    ("pass", "x", "t = self.learned; scale = t * 2; scale", ""): False,
    ("self.t = self.learned.exp()", "x", "self.t", ""): False,
    (
        "self.t = 1.0",
        "x",
        "self.t",
        f"class Own(Attention):\n    def __init__(self):\n        {LEARNED[:5]}t = t_of(1)",
    ): False,
    ("self.t = 1.0", "x", "self.t", "model = Attention()\nmodel.t = nn.Parameter(torch.ones(()))"): False,
    ("self.register_buffer('t', make())", "x", "self.t", ""): False,
    ("pass", "x", "t = x; scale = t; scale", ""): False,
}


@pytest.mark.parametrize("case", FACTORS)
def test_only_what_is_a_number_becomes_the_scale(case: tuple[str, str, str, str]) -> None:
    init, parameter, lines, after = case
    *before, factor = lines.split("; ")
    product = f"return (q @ k.mT * ({factor})).softmax(dim=-1) @ v"
    text = SCALED.replace("INIT", init).replace("PARAMETER", parameter)
    text = text.replace("LINES", "\n        ".join([*before, product])) + "\n" + after
    draft = Drafts(Sources({"/nowhere/layer.py": text}))["/nowhere/layer.py"]
    found = [each for each in attentions(draft) if draft.enclosing_class(each.product) is not None]
    assert len(found) == FACTORS[case]


# What cannot be made one call by itself, and is told of all the same; and a part of the second product.
TOLD = {
    "heads as rows": (
        """b, h, t, d = q.shape
        score = torch.bmm(q.reshape(b, h * t, d), k[:, 0].transpose(1, 2)) / math.sqrt(d)
        score = score.view(b, h, t, t)
        if mask is not None:
            score = score.masked_fill(mask == 0, float("-inf"))
        prob = torch.softmax(score, dim=-1).view(b, h * t, t)
        mix = torch.bmm(prob, v[:, 0])
        return mix.view(b, h, t, d)""",
        "torch.bmm(prob",
    ),
    "positions": (
        """content = torch.matmul(q, k.transpose(-2, -1))
        where = torch.einsum("bhid,jd->bhij", q, k[0, 0])
        att = self.soft((content + where) * self.scale)
        att = self.drop(att)
        return self.scale * torch.matmul(att, v).transpose(1, 2)""",
        "torch.matmul(att, v)",
    ),
    "branches": (
        """with torch.autocast("cpu", enabled=False):
            if mask is None:
                s = q @ k.mT
            else:
                s = torch.where(mask > 0, q @ k.mT, torch.finfo(q.dtype).min)
        return F.softmax(s.float(), -1).type_as(v).matmul(v)""",
        ".matmul(v)",
    ),
}
TOLD["windows, some of them shifted"] = (
    """attn = q * self.scale @ k.transpose(-2, -1) + self.table[self.index].unsqueeze(0)
        if mask is not None:
            n = mask.shape[0]
            attn = attn.view(len(attn) // n, n, *attn.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
            attn = self.soft(attn.view(-1, *attn.shape[2:]))
        else:
            attn = self.soft(attn)
        return (self.drop(attn) @ v).transpose(1, 2)""",
    "self.drop(attn) @ v",
)
TOLD["two ways out"] = (
    """s = q @ k.mT
        if mask is None:
            s = torch.softmax(s, dim=-1)
            return s @ v
        s = torch.softmax(s + mask, dim=-1)
        return s @ v""",
    "s @ v",
)
TOLD["a softmax by hand"] = (
    """att = q @ k.mT * self.scale
        att = (att - att.amax(-1, keepdim=True)).exp()
        att = att / att.sum(dim=-1, keepdim=True)
        return att @ v""",
    "att @ v",
)
TOLD["a softmax of its own"] = (
    """def soften(scores):
            e = torch.exp(scores - scores.max(-1, keepdim=True).values)
            e /= torch.sum(e, -1, keepdim=True)
            return e
        return soften(q @ k.mT * self.scale) @ v""",
    "soften(",
)
NOT_TOLD = {
    "returned": "w = torch.softmax(q @ k.mT, dim=-1)\n        out = torch.bmm(w, v)\n        return out, w",
    "kept": "w = torch.softmax(q @ k.mT, dim=-1)\n        self.seen = w.detach()\n        return w @ v",
    "kept in a branch": (
        "w = torch.softmax(q @ k.mT, -1)\n        if mask is None:\n            self.w = w\n        return w @ v"
    ),
    "mixed": "w = torch.softmax(q @ k.mT, dim=-1)\n        w = self.mix(w)\n        return w @ v",
    "gated": "w = torch.softmax(q @ k.mT, dim=-1) * mask\n        return w @ v",
    "capped in a branch": (
        "s = q @ k.mT\n        if self.cap:\n            s = self.cap * torch.tanh(s / self.cap)\n"
        "        return torch.softmax(s, dim=-1) @ v"
    ),
    "weights in a branch": (
        "s = q @ k.mT\n        if self.hard:\n            w = s / s.shape[-1]\n        else:\n"
        "            w = torch.softmax(s, -1)\n        return w @ v"
    ),
    "capped": "s = 30 * torch.tanh(q @ k.mT / 30)\n        return torch.softmax(s, dim=-1) @ v",
    "over the queries": "return torch.softmax(q @ k.mT, dim=-2) @ v",
    "one query for all": "w = torch.softmax(self.score(k), dim=-1)\n        return w @ v",
    "exponents": "e = torch.exp(q @ k.mT)\n        return e @ v",
    "another sum": "e = torch.exp(q @ k.mT)\n        return (e / e.sum(-2, keepdim=True)) @ v",
    "a kernel": "e = torch.exp(q @ k.mT)\n        return (e / (1 + e.sum(-1, keepdim=True))) @ v",
    "classes": "return torch.softmax(self.out(q @ k), dim=-1)",
}


@pytest.mark.parametrize("case", TOLD)
def test_attention_that_only_its_author_can_write_anew_is_told_of(case: str) -> None:
    body, part = TOLD[case]
    draft = Drafts(Sources({"/nowhere/layer.py": LAYER.replace("BODY", body)}))["/nowhere/layer.py"]
    assert not list(attentions(draft))
    (product,) = written_out(draft)
    assert part in draft.code(product)


@pytest.mark.parametrize("case", NOT_TOLD)
def test_weights_that_something_else_takes_are_none_of_ours(case: str) -> None:
    draft = Drafts(Sources({"/nowhere/layer.py": LAYER.replace("BODY", NOT_TOLD[case])}))["/nowhere/layer.py"]
    assert not list(written_out(draft))


def test_heads_that_share_their_keys_are_seen_in_the_run(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    path = tmp_path / "layer.py"
    path.write_text(LAYER.replace("BODY", TOLD["heads as rows"][0]))
    made.record.models[0].own = {"Attention": str(path)}
    made.each("cpu_op", "aten::bmm", 1.0, 2.0, **{"Input Dims": [[2, 256, 16], [2, 16, 64]]})
    made.each("cpu_op", "aten::_softmax", 3.0, 23.0, **{"Input Dims": [[2, 4, 64, 64], [], []]})
    made.each("cpu_op", "aten::bmm", 23.0, 24.0, **{"Input Dims": [[2, 256, 64], [2, 64, 16]]})
    made.operator("aten::addmm", 24.0, 49.9)
    evidence = made.evidence(tmp_path)
    finding = found(dataclasses.replace(evidence, detail=evidence.trace))
    assert finding is not None
    fix = AttentionSdpa().fix(finding, Sources())
    assert isinstance(fix, Advice) and "only its author" in fix.why


MODULES = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
        OTHER
        self.apply(lambda module: None)
        nn.init.xavier_uniform_(self.attn.in_proj_weight)

    def forward(self, x, mask=None):
        LINES
"""
UNREAD = {
    "x_, _ = self.attn(x, x, x, attn_mask=mask); return x_": True,
    "return self.attn(x, x, x, None, True, mask)[0]": True,
    "y, w = self.attn(x, x, x, need_weights=True); return y": True,
    "y, w = self.attn(x, x, x); self.w = w; return y": False,
    "return self.attn(x, x, x)": False,
    "return self.attn(x, x, x)[1]": False,
    "return self.attn(x, x, x, None, False)[0]": False,
    "return self.attn(x, x, x, **self.how)[0]": False,
    "y = self.attn(x, x, x); return y[0]": False,
}


def test_a_layer_is_known_by_whatever_module_it_is_taken_from() -> None:
    text = MODULES.replace("LINES", "return self.attn(x, x, x)[0]").replace("        OTHER\n", "")
    text = text.replace("nn.MultiheadAttention", "MultiheadAttention")
    for place in ("torch.nn", "torch.nn.modules", "torch.nn.modules.transformer"):
        source = f"from {place} import MultiheadAttention\n{text}"
        assert len(list(unread_weights(Drafts(Sources({"/nowhere/block.py": source}))["/nowhere/block.py"]))) == 1


@pytest.mark.parametrize("lines", UNREAD)
def test_weights_are_left_where_nobody_takes_them(lines: str) -> None:
    text = MODULES.replace("LINES", lines).replace("        OTHER\n", "")
    draft = Drafts(Sources({"/nowhere/block.py": text}))["/nowhere/block.py"]
    calls = list(unread_weights(draft))
    assert len(calls) == UNREAD[lines]
    if not calls:
        return
    leave_weights(draft, calls[0])
    outputs = []
    for source in (text, draft.render()):
        space: dict[str, Any] = {}
        exec(source, space)
        torch.manual_seed(0)
        outputs.append(space["Block"]()(torch.randn(2, 16, 32)))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    assert "False" in draft.render()


@pytest.mark.parametrize(
    "other",
    [
        "self.attn = Linear(3)",
        "self.attn = None if flat else nn.MultiheadAttention(32, 4, batch_first=True)",
        "self.attn: nn.Module = Linear(3)",
    ],
)
def test_what_may_be_another_module_keeps_its_weights(other: str) -> None:
    text = MODULES.replace("OTHER", other).replace("LINES", "return self.attn(x, x, x)[0]")
    assert not list(unread_weights(Drafts(Sources({"/nowhere/block.py": text}))["/nowhere/block.py"]))


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ("class Own(Block):\n    def __init__(self):\n        self.attn = Mine()\n", True),
        ("class Mid(Block):\n    pass\n\nclass Own(Mid):\n    def __init__(self):\n        self.attn = Mine()\n", True),
        ("model = Block()\nmodel.attn = Lora(model.attn)\n", True),
        ("class Other:\n    def __init__(self):\n        self.attn = Mine()\n", False),
    ],
)
def test_what_others_make_of_it_keeps_its_weights(after: str, kept: bool) -> None:
    text = MODULES.replace("OTHER", "pass").replace("LINES", "return self.attn(x, x, x)[0]") + "\n" + after
    found = list(unread_weights(Drafts(Sources({"/nowhere/block.py": text}))["/nowhere/block.py"]))
    assert len(found) == (0 if kept else 1)


def test_two_calls_on_a_line_are_both_left_without() -> None:
    text = MODULES.replace("OTHER", "pass").replace("LINES", "return self.attn(x, x, x)[0] + self.attn(x, x, x)[0]")
    sources = Sources({"/nowhere/block.py": text})
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "return self.attn" in each)
    site = Site("/nowhere/block.py", line)
    finding = Finding("attention-sdpa", "", "", Gain(1.1, 1.2, 1.3), {}, site, {"attention": (site,), "dimensions": 3})
    fix = AttentionSdpa().fix(finding, sources)
    assert isinstance(fix, Edit)
    assert fix.texts["/nowhere/block.py"].count("need_weights=False") == 2


@pytest.mark.parametrize(
    ("shape", "after", "told"),
    [
        ([8, 64, 64], "", True),
        ([2, 4, 64, 64], "", False),  # of four dimensions: somebody else's
        ([8, 64, 64], "torch.autograd.grad(y, x, create_graph=True)\n", False),
        ([8, 64, 64], "model.attn.register_forward_hook(keep)\n", False),
    ],
)
def test_weights_that_nobody_takes_are_told_where_the_scores_are_theirs(
    scene: Any, tmp_path: Path, shape: list[int], after: str, told: bool
) -> None:
    made = scene(50.0)
    path = tmp_path / "block.py"
    path.write_text(MODULES.replace("OTHER", "pass").replace("LINES", "return self.attn(x, x, x)[0]") + after)
    made.record.models[0].own = {"Block": str(path)}
    made.each("cpu_op", "aten::bmm", 1.0, 2.0, **{"Input Dims": [[8, 64, 16], [8, 16, 64]]})
    made.each("cpu_op", "aten::_softmax", 3.0, 23.0, **{"Input Dims": [shape, [], []]})
    made.each("cpu_op", "aten::bmm", 23.0, 24.0, **{"Input Dims": [[8, 64, 64], [8, 64, 16]]})
    made.operator("aten::addmm", 24.0, 49.9)
    evidence = made.evidence(tmp_path)
    finding = found(dataclasses.replace(evidence, detail=evidence.trace))
    assert (finding is not None) is told
    assert finding is None or isinstance(AttentionSdpa().fix(finding, Sources()), Edit)


def draft_of(text: str) -> Draft:
    return Drafts(Sources({"/nowhere/layer.py": text}))["/nowhere/layer.py"]


IN_BETWEEN = {
    "queries changed in place": (
        "att = q @ k.mT\n        q.mul_(2)\n        att = att.softmax(-1)\n        return att @ v"
    ),
    "keys changed by a function": (
        "att = q @ k.mT\n        torch.relu_(k)\n        att = att.softmax(-1)\n        return att @ v"
    ),
    "a number is added": "att = q @ k.mT + 1e-9\n        att = att.softmax(-1)\n        return att @ v",
}


@pytest.mark.parametrize("case", IN_BETWEEN)
def test_what_the_function_would_not_compute_stays_written_out(case: str) -> None:
    assert not list(attentions(draft_of(LAYER.replace("BODY", IN_BETWEEN[case]))))


def test_something_else_in_between_is_no_reason() -> None:
    body = "att = q @ k.mT\n        v.mul_(2)\n        self.seen.add_(1)\n        return att.softmax(-1) @ v"
    assert len(list(attentions(draft_of(LAYER.replace("BODY", body))))) == 1


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("B, H, F = 1, 2, 3", "nn.functional.scaled_dot_product_attention"),
        ("B, H, D = 1, 2, 3", "F.scaled_dot_product_attention"),
        ("F = nn = None", "torch.nn.functional.scaled_dot_product_attention"),
        ("F = nn = torch = None", None),
    ],
)
def test_a_name_that_is_something_else_there_is_not_taken(before: str, name: str | None) -> None:
    draft = draft_of(LAYER.replace("BODY", f"{before}\n        return (q @ k.mT).softmax(-1) @ v"))
    (found,) = attentions(draft)
    assert fuse(draft, found, 4) is (name is not None)
    if name is not None:
        assert f"return {name}(q, k, v" in draft.render()


def test_a_mask_of_whole_numbers_is_given_in_the_queries_type() -> None:
    draft = draft_of(LAYER.replace("BODY", "a = q @ k.mT + (1 - mask) * -10000\n        return a.softmax(-1) @ v"))
    (found,) = attentions(draft)
    assert fuse(draft, found, 4)
    code = draft.render()
    namespaces: list[dict[str, Any]] = [{}, {}]
    for namespace, each in zip(namespaces, (draft.source.text, code), strict=True):
        exec(each, namespace)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 5, 16)
    mask = (torch.rand(2, 1, 1, 5) > 0.4).long()
    mask[..., 0] = 1
    by_hand, fused = (each["Attention"]()(q, k, v, mask) for each in namespaces)
    torch.testing.assert_close(by_hand, fused)
