"""Attention whose mask leaves little of it is told of by the tiles that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import AttentionMask, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.attention_mask import AttentionMasks
from tests.conftest import PYTHON, QUICK

RULE = AttentionMasks()


def line(**facts: Any) -> AttentionMask:
    given = {"queries": 1536, "keys": 1536, "reach": 95, "calls": 4.0, "seconds": 4e-3, "needed": 0.4e-3}
    return AttentionMask(Site("model.py", 9), **{**given, **facts})


def findings(scene: Any, tmp_path: Path, *lines: AttentionMask, gpu: str = "") -> list[Any]:
    made = scene(10.0, gpu=gpu) if gpu else scene(10.0)
    made.operator("aten::scaled_dot_product_attention", 0.1, 9.9)
    made.record.attention_masks = list(lines)
    return list(RULE.check(made.evidence(tmp_path)))


def test_a_window_is_told_with_what_it_reaches(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path, line())
    assert "90% of their tiles: no query looks farther than 95 places" in finding.summary
    # 4 ms of 10 become 0.84.
    assert finding.gain.low <= 10 / 6.84 <= finding.gain.high <= 2 * finding.gain.low
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "blocks of 95 or so queries" in fix.text


def test_texts_of_a_packed_sequence_are_parts(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path, line(reach=200, band=False))
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "for each part by itself" in fix.text


@pytest.mark.parametrize(
    "facts", [{"needed": 2.1e-3}, {"seconds": 1e-3, "needed": 0.1e-3}], ids=["a causal mask", "next to no time"]
)
def test_what_leaves_half_or_takes_little_is_not_told(facts: Any, scene: Any, tmp_path: Path) -> None:
    assert findings(scene, tmp_path, line(**facts)) == []


def test_calls_take_no_time_on_a_gpu(scene: Any, tmp_path: Path) -> None:
    assert findings(scene, tmp_path, line(), gpu="NVIDIA H200") == []


SCRIPT = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
tokens, heads, width = 1024, 4, 64
apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
mask = (apart >= 0) & (apart < {window})
qkv, out = nn.Linear(width, 3 * width), nn.Linear(width, width)
optimizer = torch.optim.SGD([*qkv.parameters(), *out.parameters()], lr=0.01)


class Attention(nn.Module):
    def forward(self, x):
        q, k, v = qkv(x).view(1, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out(y.transpose(1, 2).flatten(2))


model = Attention()
model.qkv, model.out = qkv, out
for step in range(120):
    loss = model(torch.randn(1, tokens, width)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("window", "told"), [(64, True), (1024, False)])
def test_attention_to_a_window_in_a_real_script(window: int, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(window=window))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    (seen,) = run.record.attention_masks
    assert seen.reach == window - 1 and seen.site.line == 17
    found = list(RULE.check(Evidence.from_run(run)))
    assert bool(found) is told
