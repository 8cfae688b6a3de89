"""An output layer that a loop over time calls is found by running a script that has one, and its gain is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import LoopedLayer, Site
from advisor.launch import Command, measure
from rules.layer_in_loop import LayerInLoop
from tests.conftest import PYTHON, QUICK

RULE = LayerInLoop()
LOOP = "for x in xs:\n    h = cell(x, h)\n    scores.append(self.head(h))\n"


def findings(
    scene: Any, folder: Path, source: str = LOOP, gpu: str = "", step_ms: float = 100, **facts: Any
) -> list[Any]:
    path = folder / "train.py"
    path.write_text(source)
    number, line = next(each for each in enumerate(source.split("\n"), 1) if "self.head" in each[1])
    begin = line.index("self.head(h)")
    site = Site(str(path), number, begin, number, begin + len("self.head(h)"))
    given = {"inputs": 256, "outputs": 8000, "calls": 18.0, "rows": 18 * 24.0}
    seconds = {"seconds": 12.4e-3, "differentiated_s": 12.4e-3}
    made = scene(step_ms=step_ms, gpu=gpu)
    made.record.looped_layers = [LoopedLayer(site, [site], **{**given, **seconds, **facts})]
    made.operator("aten::addmm", 2, 50)
    return list(RULE.check(made.evidence(folder)))


def test_a_head_that_only_collects_is_reported(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path)
    assert finding.evidence["seconds_saved"] == pytest.approx(14.1e-3, rel=0.05)  # 20 of 47 ms were measured alone
    assert "train.py:1 calls self.head 18 times" in finding.summary and "on 24 rows" in finding.summary
    assert finding.site is not None and finding.site.line == 3
    assert "scores = self.head(torch.stack(states, 1))" in RULE.fix(finding, Sources()).text


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"source": LOOP + "    h = h + scores[-1]\n"}, id="the next round reads it"),
        pytest.param({"rows": 18 * 128.0}, id="of many rows"),
        pytest.param({"step_ms": 400}, id="of a long step"),
        pytest.param({"gpu": "NVIDIA H200"}, id="on a GPU"),
    ],
)
def test_it_is_left_alone(scene: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert not findings(scene, tmp_path, **facts)


SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Decoder(nn.Module):
    def __init__(self, words=4000, width=128):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.drop = nn.Dropout(0.1)
        self.head = {head}

    def forward(self, seen, words):
        h, context, {kept} = seen, seen, []
        for word in self.embed(words).unbind(1):
            h = self.cell(torch.cat([word, context], 1), h)
            context = torch.softmax(h, 1) * seen
            {collect}
        return {result}


model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    words = torch.randint(4000, (8, 13))
    scores = model(torch.randn(8, 128), words[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HEAD = {"head": "nn.Linear(width, words)"}
BESIDE = {"head": "nn.Sequential(nn.Linear(width, words), nn.BatchNorm1d(words))"}  # whose statistics are a round's
EACH = {"kept": "scores", "collect": "scores.append(self.head(self.drop(h)))", "result": "torch.stack(scores, 1)"}
ONCE = {"kept": "states", "collect": "states.append(h)", "result": "self.head(self.drop(torch.stack(states, 1)))"}


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("parts", "told"), [({**HEAD, **EACH}, True), ({**HEAD, **ONCE}, False), ({**BESIDE, **EACH}, False)]
)
def test_an_output_layer_in_a_loop_over_words_is_found(tmp_path: Path, parts: dict[str, str], told: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(**parts))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    if not told:
        assert not run.record.looped_layers
        return
    (line,) = run.record.looped_layers
    assert (line.calls, line.rows, line.outputs) == (12, 96, 4000) and line.differentiated_s > 0
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.gain.likely > 1.3 and "self.head" in finding.summary
