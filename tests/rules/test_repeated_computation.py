"""What a step computes a second time is found by running scripts that do, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Repeated, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.recomputed_constants import RecomputedConstants
from rules.repeated_computation import RepeatedComputation
from tests.conftest import PYTHON, QUICK

RULE = RepeatedComputation()

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Decoder(nn.Module):
    def __init__(self, width=192, steps=6):
        super().__init__()
        self.steps = steps
        self.encode, self.keys = nn.GRU(16, width, batch_first=True), nn.Linear(width, width)
        self.ask, self.out = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x):
        memory, _ = self.encode(x)
        state, found = memory[:, -1], []
        {once}
        for _ in range(self.steps):
            {each}
            weights = (self.ask(state).unsqueeze(1) @ keys.mT).softmax(-1)
            state = state + (weights @ memory).squeeze(1)
            found.append(self.out(state))
        return torch.cat(found, 1)


model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    x, y = torch.randn(16, 48, 16), torch.randn(16, 6)
    out = model(x)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    {metric}
    optimizer.step()
"""
FINE = {"once": "keys = self.keys(memory)", "each": "pass", "metric": "pass"}


def run_of(folder: Path, steps: int = 300, **parts: str) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(**{**FINE, **parts}).replace("range(300)", f"range({steps})"))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_projection_of_each_decoder_step_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path, once="pass", each="keys = self.keys(memory)")
    line = run.record.repeated[0]
    assert line.site.line == 21 and line.calls == pytest.approx(5) and line.differentiated_s == line.seconds
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line == 21
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "before the loop" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_it_is_found_in_a_script_of_twenty_steps(tmp_path: Path) -> None:
    """The second run, with shorter windows, has no steps left to watch: what the first one saw is kept."""
    run = run_of(tmp_path, steps=20, once="pass", each="keys = self.keys(memory)")
    assert any("run again with shorter windows" in note for note in run.record.notes)
    assert run.record.repeated[0].site.line == 21 and run.record.repeated[0].calls == pytest.approx(5)
    # Steps that were watched are none to take the time from.
    timing = run.record.timing
    assert len(timing.intervals) < 19 and (timing.step_s or 0.0) < 2 * (timing.median_s or 0.0)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_short_script_without_repetition_says_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=20, each="keys = self.keys(memory + state.unsqueeze(1))")
    assert sum(each.seconds for each in run.record.repeated) < 0.05 * (run.record.timing.step_s or 0.0)
    assert list(RULE.check(Evidence.from_run(run))) == []


@pytest.mark.slow
@pytest.mark.sessions
def test_a_model_that_is_called_again_for_a_metric_is_found_as_a_whole(tmp_path: Path) -> None:
    run = run_of(tmp_path, metric="with torch.no_grad(): mae = (model(x) - y).abs().mean()")
    lines = {each.site.line for each in run.record.repeated}
    assert 17 in lines  # the GRU, whose first state is made anew
    assert not any(each.differentiated_s for each in run.record.repeated)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert "called at train.py:36" in finding.summary


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_differentiated_for_another_loss_has_no_backward_to_save(tmp_path: Path) -> None:
    """As a discriminator's is, behind the generator's: by then the first graph is gone."""
    run = run_of(tmp_path, metric="other = model(x).square().mean(); other.backward()")
    lines = {each.site.line: each for each in run.record.repeated}
    assert 17 in lines and lines[17].seconds > 0.0
    assert not any(each.differentiated_s for each in run.record.repeated)


PARAMETRIZED = """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import orthogonal

torch.manual_seed(0)
torch.set_num_threads(1)


class Unrolled(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.turn, self.out = orthogonal(nn.Linear(width, width, bias=False)), nn.Linear(width, 1)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for t in range(x.size(1)):
            state = torch.relu(x[:, t] + self.turn(state))
        return self.out(state)


model = Unrolled()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(120):
    x, y = torch.randn(16, 8, 96), torch.randn(16, 1)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_weight_that_is_made_anew_in_each_round_is_cached(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARAMETRIZED)
    command = Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path))
    run = measure(command, tmp_path / "run", QUICK)
    (finding,) = RULE.check(Evidence.from_run(run))
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    assert "    with nn.utils.parametrize.cached():\n        loss = F.mse_loss(model(x), y)\n" in text
    (tmp_path / "train.py").write_text(text)
    again = measure(command, tmp_path / "again", QUICK)
    assert (again.record.timing.step_s or 0.0) * finding.gain.low < (run.record.timing.step_s or 0.0)
    assert list(RULE.check(Evidence.from_run(again))) == []


SHARED_GRAPH = """import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
graph = (torch.rand(1500, 1500) < 0.02).float().to_sparse()


class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1500, 32)

    def forward(self, rows):
        return torch.sparse.mm(graph, torch.sparse.mm(graph, self.embed.weight))[rows]


model = Spread()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(200):
    liked, other = torch.randint(1500, (64,)), torch.randint(1500, (64,))
    loss = F.softplus(model(other).sum(1) - model(liked).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_sparse_graph_is_the_same_in_both_calls(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARED_GRAPH)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON), tmp_path / "run", QUICK)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line == 16


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({}, id="each once"),
        pytest.param({"metric": "model(x + 0.1)"}, id="other numbers"),
        pytest.param({"metric": "optimizer.step(); model(x)"}, id="other weights"),
        pytest.param({"each": "keys = self.keys(F.dropout(memory))"}, id="drawn anew"),
        pytest.param({"each": "keys = self.keys(memory + state.unsqueeze(1))"}, id="with the state in it"),
        pytest.param({"each": "memory = memory * 0.9; keys = self.keys(memory)"}, id="changed in between"),
        pytest.param(
            {"metric": "[p.data.mul_(1.001) for p in model.parameters()]; model(x)"}, id="weights changed unseen"
        ),
    ],
)
@pytest.mark.slow
@pytest.mark.sessions
def test_what_differs_is_not_taken_for_the_same(parts: dict[str, str], tmp_path: Path) -> None:
    run = run_of(tmp_path, **parts)
    assert list(RULE.check(Evidence.from_run(run))) == []
    assert sum(each.seconds for each in run.record.repeated) < 0.05 * (run.record.timing.step_s or 0.0)


def test_little_is_not_worth_a_word(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.operator("aten::mm", 1.0, 49.0)
    made.record.repeated = [Repeated(site=Site("/x/train.py", 3), calls=2.0, seconds=0.001)]
    assert list(RULE.check(made.evidence(tmp_path))) == []
    made.record.repeated[0].seconds = 0.02
    (finding,) = RULE.check(made.evidence(tmp_path))
    assert 1.3 < finding.gain.likely < 1.8


ALIKE = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Means(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(24, 200), nn.Linear(200, 1)

    def forward(self, ids):
        found = []
        table = self.rows.weight
        for i in ids:
            found.append(torch.sigmoid(torch.exp(table[i])))
        return self.out(torch.stack(found))


model = Means()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    loss = model(torch.randint(0, 24, (64,)).tolist()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_samples_of_a_loop_that_are_alike_by_chance_are_no_repetition(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALIKE)
    evidence = Evidence.from_run(
        measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    )
    assert evidence.record is not None and evidence.step_s and evidence.sample_loop is not None
    lines = ALIKE.splitlines()
    for piece, told in (("found.append", 0), ("return self.out", 1)):
        (line,) = (number for number, text in enumerate(lines, 1) if piece in text)
        evidence.record.repeated = [Repeated(Site(str(script), line), calls=30.0, seconds=0.3 * evidence.step_s)]
        assert len(list(RULE.check(evidence))) == told


ATTACK = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 64), nn.ReLU(),
                    nn.Dropout(0.5), nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(300):
    x, y = torch.rand(16, 1, 28, 28), torch.randint(10, (16,))
    net.eval()
    attacked = x + 0.001 * torch.randn_like(x)
    for _ in range(4):
        attacked.requires_grad_()
        loss = F.kl_div(F.log_softmax(net(attacked), 1), F.softmax(net(x), 1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, [attacked])
        attacked = (attacked.detach() + 0.003 * gradient.sign()).clamp(0, 1)
    net.train()
    optimizer.zero_grad()
    F.cross_entropy(net(attacked), y).backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_model_that_each_step_puts_into_eval_is_part_of_it(tmp_path: Path) -> None:
    """An attack compares with what the model gives for the untouched pictures, in each of its steps anew."""
    (tmp_path / "train.py").write_text(ATTACK)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    lines = run.record.repeated
    # Convolution, activations, flattening, linear layers; the dropout does nothing there, and what follows is the same.
    assert lines and all(each.site.line == 16 for each in lines)
    assert sum(each.calls for each in lines) >= 3 * 7
    assert not any(each.differentiated_s for each in lines)  # the gradient is asked for by the attacked ones alone
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line == 16


EVALUATED = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(200, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(1500, 200), torch.randint(10, (1500,))
for epoch in range(300):
    net.train()
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        right = (net(x).argmax(1) == y).float().mean()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_loss_is_no_repetition_of_an_evaluation(tmp_path: Path) -> None:
    """All of the data in each step, and an evaluation of the same after it, with the weights that the next one has."""
    (tmp_path / "train.py").write_text(EVALUATED)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert not run.record.repeated and not list(RULE.check(Evidence.from_run(run)))


OF_A_LIBRARY = """\
import torch
from transformers import T5Config, T5EncoderModel

torch.manual_seed(0)
torch.set_num_threads(1)
model = T5EncoderModel(T5Config(vocab_size=40, d_model=64, d_kv=8, d_ff=64, num_layers=3, num_heads=8)).eval()
mask = torch.ones(6, 320, dtype=torch.long)
mask[:, 200:] = 0
for step in range(150):
    with torch.no_grad():
        out = model(torch.randint(3, 40, (6, 320)), attention_mask=mask)
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_what_a_library_s_model_does_in_each_of_its_layers_is_not_the_script_s(tmp_path: Path) -> None:
    """T5 adds the mask to its table of positions in each layer anew: no line of the script could keep that."""
    (tmp_path / "embed.py").write_text(OF_A_LIBRARY)
    run = measure(Command(str(tmp_path / "embed.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert run.record.complete and run.record.repeated == []


LETTERS = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Attend(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, source):
        q = self.query(x)
        k = self.key(source)
        v = self.value(source)
        return (q @ k.mT).softmax(-1) @ v


class Decoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.letters, self.across = nn.Embedding(30, width), Attend()
        self.own = nn.ModuleList(Attend() for _ in range(8))  # a call is looked at that takes some time
        self.out = nn.Linear(width, 30)

    def forward(self, letter, memory):
        x = self.letters(letter)
        for own in self.own:
            x = x + own(x, x)
        return self.out(x + self.across(x, memory))


encode, decode = nn.GRU(16, 128, batch_first=True), Decoder()
with torch.inference_mode():
    for clip in range(250):
        memory, _ = encode(torch.randn(64, 20, 16))
        letter = torch.zeros(64, 1, dtype=torch.long)
        for _ in range(12):
            letter = decode(letter, memory).argmax(-1)
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_first_letter_that_is_always_the_same_does_not_hide_what_each_letter_computes_again(tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(LETTERS)
    run = measure(Command(str(tmp_path / "read.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    evidence = Evidence.from_run(run)
    assert any(each.site.line in (14, 15, 16) for each in run.record.recomputed)  # of the first letter
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line in (15, 16)
    assert list(RecomputedConstants().check(evidence)) == []
