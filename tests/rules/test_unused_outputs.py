"""Outputs that are computed for all positions and taken from one are found by running scripts, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.unused_outputs import UnusedOutputs
from tests.conftest import PYTHON, QUICK

RULE = UnusedOutputs()

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Next(nn.Module):
    def __init__(self, words=2500, width=48):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        states, _ = self.mix(self.embed(ids))
        {head}


model = Next()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    ids, target = torch.randint(2500, (16, 24)), torch.randint(2500, (16,))
    scores = model(ids)
    {taken}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FINE = {"head": "return self.head(states)[:, -1]", "taken": "loss = F.cross_entropy(scores, target)"}
LAST = "loss = F.cross_entropy(scores[:, -1], target)"


def found(folder: Path, **parts: str) -> Finding | None:
    (folder / "train.py").write_text(SCRIPT.format(**{**FINE, **parts}))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    findings = list(RULE.check(Evidence.from_run(run)))
    assert len(findings) <= 1
    return findings[0] if findings else None


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_of_all_positions_are_found_and_taken_before(tmp_path: Path) -> None:
    finding = found(tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 18
    assert finding.evidence["outputs_shape"] == "16x24x2500" and finding.gain.likely > 1.25
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "return self.head(states[:, -1])" in next(iter(fix.texts.values()))
    (tmp_path / "after").mkdir()
    assert found(tmp_path / "after", head="return self.head(states[:, -1])") is None


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_of_which_a_mask_takes_a_few_are_found(tmp_path: Path) -> None:
    asked = "loss = F.cross_entropy(scores[known[:, 1:]], torch.randint(2500, (16, 24))[known[:, 1:]])"
    whole = "return self.head(states)"
    finding = found(tmp_path, head=whole, taken=f"known = torch.rand(16, 25) < 0.2; {asked}")
    assert finding is not None and finding.site is not None and finding.site.line == 26
    used = finding.evidence["used"]
    assert isinstance(used, float) and 0.1 < used < 0.3 and finding.gain.likely > 1.25
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "layer(x[mask])" in fix.text
    (tmp_path / "most").mkdir()
    assert found(tmp_path / "most", head=whole, taken=f"known = torch.rand(16, 25) < 0.8; {asked}") is None


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_by_the_embedding_s_own_weights_are_found(tmp_path: Path) -> None:
    finding = found(tmp_path, head="return (states @ self.embed.weight.t())[:, -1]")
    assert finding is not None and finding.site is not None and finding.site.line == 18
    assert finding.evidence["outputs_shape"] == "16x24x2500" and finding.gain.likely > 1.25
    assert isinstance(RULE.fix(finding, Sources()), Advice)
    (tmp_path / "after").mkdir()
    assert found(tmp_path / "after", head="return states[:, -1] @ self.embed.weight.t()") is None


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_of_which_the_last_of_each_is_named_are_found(tmp_path: Path) -> None:
    last = "[torch.arange(len(ids)), torch.randint(24, (16,)) - 1]"
    finding = found(tmp_path, head=f"return self.head(states){last}")
    assert finding is not None and finding.site is not None and finding.site.line == 18
    assert finding.evidence["used"] == pytest.approx(1 / 24) and finding.gain.likely > 1.25
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit) and f"return self.head(states{last})" in next(iter(fix.texts.values()))
    (tmp_path / "after").mkdir()
    assert found(tmp_path / "after", head=f"return self.head(states{last})") is None
    (tmp_path / "rows").mkdir()
    rows = "loss = F.cross_entropy(scores[torch.randperm(16)].flatten(0, 1), torch.randint(2500, (384,)))"
    assert found(tmp_path / "rows", head="return self.head(states)", taken=rows) is None


@pytest.mark.slow
@pytest.mark.sessions
def test_scores_of_which_candidates_are_taken_by_name_are_found(tmp_path: Path) -> None:
    head, loss = "return self.head(states)", "F.softplus(bad - good).mean()"
    several = "good, bad = scores.gather(2, ids[..., None]), scores.gather(2, torch.randint(2500, (16, 24, 20)))"
    finding = found(tmp_path, head=head, taken=f"{several}; loss = {loss}")
    assert finding is not None and finding.evidence["outputs_shape"] == "16x24x2500" and finding.gain.likely > 1.25
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "weight[names]" in fix.text
    for name, taken in {
        "whole": f"{several}; loss = {loss} + scores.logsumexp(2).mean()",
        "normed": "loss = -scores.log_softmax(2).gather(2, ids[..., None]).mean()",
        "most": "loss = scores.gather(2, torch.randint(2500, (16, 24, 2000))).square().mean()",
        "positions": "loss = scores.gather(1, torch.randint(24, (16, 4, 2500))).square().mean()",
    }.items():
        (tmp_path / name).mkdir()
        assert found(tmp_path / name, head=head, taken=taken) is None, name


LABELS = "words = torch.randint(2500, (16, 24)); words[torch.rand(16, 24) < {share}] = -100"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("loss = nn.CrossEntropyLoss()(scores.transpose(1, 2), words)", id="module"),
        pytest.param(
            "loss = F.cross_entropy(scores[:, :-1].reshape(-1, 2500).float(), words[:, 1:].reshape(-1))", id="shifted"
        ),
    ],
)
def test_scores_of_labels_that_the_loss_ignores_are_found(loss: str, tmp_path: Path) -> None:
    whole = "return self.head(states)"
    finding = found(tmp_path, head=whole, taken=f"{LABELS.format(share=0.85)}; {loss}")
    assert finding is not None and finding.site is not None and finding.site.line == 26
    used = finding.evidence["used"]
    assert isinstance(used, float) and 0.1 < used < 0.2 and finding.gain.likely > 1.25
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "labels[has]" in fix.text
    (tmp_path / "few").mkdir()
    assert found(tmp_path / "few", head=whole, taken=f"{LABELS.format(share=0.2)}; {loss}") is None


@pytest.mark.slow
@pytest.mark.sessions
def test_what_another_function_takes_gets_advice(tmp_path: Path) -> None:
    finding = found(tmp_path, head="return F.relu(self.head(states))", taken=LAST)
    assert finding is not None and finding.site is not None and finding.site.line == 26
    assert isinstance(RULE.fix(finding, Sources()), Advice)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"head": "return self.head(states[:, -1])"}, id="one position"),
        pytest.param(
            {"head": "return self.head(states)", "taken": f"{LAST} + 1e-4 * scores.logsumexp(-1).mean()"},
            id="all are used, too",
        ),
        pytest.param(
            {"head": "return self.head(states).cumsum(1)", "taken": LAST}, id="positions that depend on each other"
        ),
        pytest.param(
            {
                "head": "return self.head(states)[:, 4:]",
                "taken": "loss = F.cross_entropy(scores.mT, torch.randint(2500, (16, 20)))",
            },
            id="nearly all",
        ),
    ],
)
def test_what_is_used_is_left(parts: dict[str, str], tmp_path: Path) -> None:
    assert found(tmp_path, **parts) is None
