"""Attention by hand: seen in the run, found in the source, and the same numbers afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from advisor.rules.attention_sdpa import AttentionSdpa

from advisor.edit import Drafts, Edit, Sources
from advisor.edit.attention import attentions, fuse
from advisor.evidence import Evidence
from advisor.rule import Finding

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


def scene_of(scene: Any, folder: Path, scores_ms: float, dropout: bool = False) -> Evidence:
    """A CPU run whose steps spend so many of their 50 ms on scores of 2x4x64x64."""
    made = scene(50.0)
    path = folder / "layer.py"
    path.write_text(LAYER.replace("BODY", BODIES["causal"]))
    made.record.models[0].own = {"Attention": str(path)}
    dims = {"Input Dims": [[2, 4, 64, 64], [], []]}
    made.each("cpu_op", "aten::bmm", 1.0, 2.0, **{"Input Dims": [[8, 64, 64], [8, 64, 16]]})
    made.each("cpu_op", "aten::bmm", 2.0, 3.0, **{"Input Dims": [[8, 64, 16], [8, 16, 64]]})
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


def test_scores_that_cost_nothing_are_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(scene_of(scene, tmp_path, 0.5)) is None


def test_dropout_of_the_weights_on_a_cpu_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(scene_of(scene, tmp_path, 20.0, dropout=True)) is None


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
    mask[..., 0] = 1.0  # no row is masked altogether
    outputs = []
    for source in (text, fused):
        space: dict[str, Any] = {}
        exec(source, space)
        outputs.append(space["Attention"]()(q, k, v, mask))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
