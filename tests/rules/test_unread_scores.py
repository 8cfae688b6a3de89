"""A head whose scores nobody reads is found in real runs, where nothing takes them and the source reads the states."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.launch import Command, measure
from advisor.rule import Advice
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Answer(dict):
    def __getattr__(self, name):
        return self[name]


class SmallForCausalLM(nn.Module):  # as a library has it
    base_model_prefix = "model"

    def __init__(self):
        super().__init__()
        self.model = Body()
        self.lm_head = nn.Linear(64, 6000, bias=False)

    @property
    def base_model(self):
        return self.model

    def forward(self, ids, output_hidden_states=False):
        states = self.model(ids)["hidden_states"]
        self.last = self.lm_head(states[-1])
        return Answer(logits=self.last, hidden_states=states)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6000, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, ids, output_hidden_states=False):
        states = [self.words(ids)]
        for layer in self.layers:
            states.append(states[-1] + torch.tanh(layer(states[-1])))
        return Answer(last_hidden_state=states[-1], hidden_states=tuple(states))


def embed(model, ids):
    out = model(ids, output_hidden_states=True)
    return RETURNED


model = SmallForCausalLM().eval()
kept = []
with torch.inference_mode():
    for _ in range(4000):
        ids = torch.randint(6000, (8, 32))
        kept = [*kept[-3:], CALLED]
"""


_CALL = "    out = model(ids, output_hidden_states=True)"
_STATES = "out.hidden_states[-1].mean(1)"


def diagnosed(folder: Path, returned: str, called: str = "embed(model, ids)") -> tuple[Findings, list[object]]:
    script = folder / "embed.py"
    script.write_text(SCRIPT.replace("RETURNED", returned).replace("CALLED", called))
    run = measure(Command(str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK, timeout=120)
    diagnosis = diagnose(Evidence.from_run(run))
    return diagnosis.document, [each.fix for each in diagnosis.found if each.rule.id == "unread-scores"]


@pytest.mark.slow
@pytest.mark.parametrize("returned", [_STATES, "torch.stack(out.hidden_states[-2:]).mean((0, 2))"])
def test_states_are_read_alone(returned: str, tmp_path: Path) -> None:
    document, fixes = diagnosed(tmp_path, returned)
    (found,) = [each for each in document.findings if each.rule == "unread-scores"]
    assert (found.file, found.line) == ("embed.py", SCRIPT.splitlines().index(_CALL) + 1)
    assert found.evidence["scores_shape"] == "8x32x6000" and found.predicted.speedup.likely > 1.5
    (fix,) = fixes
    assert isinstance(fix, Advice) and "none of transformers' models" in fix.why


@pytest.mark.sessions
@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "called"),
    [
        (f"{_STATES}, out.logits.argmax(-1)", "embed(model, ids)"),  # an operator takes them
        (f"{_STATES}, out.logits", "embed(model, ids)"),  # or something may, later
        (_STATES, "embed(model, ids), torch.stack([model.last]).mean()"),  # in a list
        (_STATES, "embed(model, ids), torch.cat([model.last.view(-1), torch.ones(9)]).mean()"),  # in another shape
        (_STATES, "embed(model, ids), torch.einsum('btv,v->bt', model.last, torch.ones(6000))"),
        # It reads states elsewhere.
        (_STATES, "nn.functional.cross_entropy(model(ids).logits.view(-1, 6000), ids.view(-1))"),
    ],
)
def test_scores_that_are_read_are_left(returned: str, called: str, tmp_path: Path) -> None:
    document, _ = diagnosed(tmp_path, returned, called)
    assert "unread-scores" not in [each.rule for each in document.findings]
