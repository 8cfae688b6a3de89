"""A model that is never called, only asked by a method's name: that method is its forward."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.evidence import Evidence
from advisor.improve.numerics import compare_numerics
from advisor.launch import Command, measure
from advisor.rule import Safety
from tests.conftest import PYTHON, QUICK

pytestmark = pytest.mark.oldest

SCRIPT = """
import pickle
import torch
from torch import nn

class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.cell = nn.GRUCell(16, 16)
        self.out = nn.Linear(16, 20)

    def begin(self, first):
        return torch.tanh(self.emb(first))

    def greedy(self, first, length):
        state, token = self.begin(first), first
        said = []
        for _ in range(length):
            state = self.cell(self.emb(token), state)
            token = self.out(state).argmax(-1)
            said.append(token)
        return torch.stack(said, 1)

    def tokens(self):
        yield from range(20)

greedy, tokens = Speaker.greedy, Speaker.tokens
model = Speaker().eval()
with torch.inference_mode():
    for number in range(20000):
        model.greedy(torch.randint(20, (8,)), 6)
        if number == 30:
            assert type(pickle.loads(pickle.dumps(model))) is Speaker and list(model.tokens()) == list(range(20))
            assert Speaker.tokens is tokens and Speaker.begin.__name__ == "begin"
"""


@pytest.mark.slow
def test_each_call_from_outside_is_a_step(tmp_path: Path) -> None:
    script = tmp_path / "speak.py"
    script.write_text(SCRIPT)
    record = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    assert record.step_kind == "forward" and record.complete
    (model,) = record.models
    assert model.cls == "Speaker" and model.inference_mode and [each.shape for each in model.inputs] == [[8]]
    assert record.timing.samples_per_step == 8
    (called,) = [each for each in record.call_sites if each.kind == "Module.call"]
    assert called.calls_per_step == 1, "what greedy calls of its own is a part of it"
    assert "model.greedy" in SCRIPT.splitlines()[called.site.line - 1]
    assert called.called_from == [called.site], "the script's one frame around it, in the profiled windows"


SPOKEN = """
import torch
from torch import nn

class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear, self.cell, self.out = nn.GRU(20, 32, batch_first=True), nn.GRUCell(32, 32), nn.Linear(32, 40)
        self.words = nn.Embedding(40, 32)

    def encode(self, sound):
        return self.ear(sound)[1][0]

    def word(self, last, state):
        state = self.cell(self.words(last), state)
        return self.out(state).argmax(-1), state

model = Listener().eval()
with torch.inference_mode():
    for number in range(20000):
        state, last = model.encode(torch.randn(4, 30, 20)), torch.zeros(4, dtype=torch.int64)
        for _ in range(25):
            last, state = model.word(last, state)
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_encoded_once_for_many_words_begins_a_step(tmp_path: Path) -> None:
    script = tmp_path / "listen.py"
    script.write_text(SPOKEN)
    record = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    assert record.step_kind == "forward" and record.complete
    calls = {
        SPOKEN.splitlines()[each.site.line - 1].split("model.")[1].partition("(")[0]: each.calls_per_step
        for each in record.call_sites
        if each.kind == "Module.call"
    }
    assert calls == {"encode": 1.0, "word": 25.0}


PARTS = """
import time
import torch
from torch import nn

class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
        self.heads = nn.ModuleList([nn.Linear(64, 8), nn.Linear(64, 4)])

    def forward(self, x):
        return self.heads[0](self.encoder(x))

model = Captioner().eval()
time.sleep(5)  # the data is made
with torch.inference_mode():
    for number in range(200000):
        LINES
"""


@pytest.mark.sessions
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "models"),
    [
        ("model.heads[1](model.encoder(torch.randn(16, 32)))", ["Sequential", "Linear"]),
        pytest.param("model(torch.randn(16, 32))", ["Captioner"], marks=pytest.mark.sessions),
    ],
)
def test_parts_of_a_model_that_is_never_called_are_models(lines: str, models: list[str], tmp_path: Path) -> None:
    script = tmp_path / "caption.py"
    script.write_text(PARTS.replace("LINES", lines))
    record = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    assert record.step_kind == "forward" and record.complete
    assert [each.cls for each in record.models] == models
    assert record.timing.samples_per_step == 16, "one batch, given from part to part"
    called = [each.calls_per_step for each in record.call_sites if each.kind == "Module.call"]
    assert called == [1.0] * len(models)


HEADLESS = """
import time
import torch
from torch import nn

torch.manual_seed(0)

class Writer(nn.Module):
    base_model_prefix = "body"  # as transformers has it

    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), nn.Linear(16, 50)

    def forward(self, x):
        states = self.body(x).hidden_states
        return Scored(states, self.head(states[-1]))

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 16), nn.Linear(16, 16)

    def forward(self, x):
        states = self.words(x)
        return Answer((states, self.layer(states)))

class Answer(dict):
    def __init__(self, states):
        super().__init__(states=states[-1])
        self.hidden_states = states

class Scored(Answer):
    def __init__(self, states, scores):
        super().__init__(states)
        self.hidden_states = states
        self.clear()
        self["logits"] = scores

model = Writer().eval()
judge = nn.Linear(16, 3)  # another model, called in turn
batches = [torch.randint(50, (16, number % 5 + 1)) for number in range(20)]
time.sleep(1.8)  # parts are hooked by the clock meanwhile
with torch.inference_mode():
    for number in range(200000):
        LINE
"""


@pytest.mark.slow
@pytest.mark.parametrize("judged", [pytest.param(False, marks=pytest.mark.sessions), True])
def test_a_model_that_is_called_without_its_head_gives_the_same_states_from_the_first_call_on(
    judged: bool, tmp_path: Path
) -> None:
    records = []
    for number, (line, cls) in enumerate((("model(batch)", "Writer"), ("model.body(batch)", "Body"))):
        used = f"judge({line}.hidden_states[-1])" if judged else line
        script = tmp_path / f"embed{number}.py"
        script.write_text(HEADLESS.replace("LINE", used.replace("batch", "batches[number % 20]")))
        command = Command(str(script), python=PYTHON, cwd=str(tmp_path))
        records.append(measure(command, tmp_path / f"run{number}", QUICK).record)
        assert records[-1].complete
        assert [each.cls for each in records[-1].models] == [cls, *(["Linear"] if judged else [])]
        assert records[-1].timing.samples_per_step == (32 if judged else 16)  # of two models
    one, other = (record.states for record in records)
    least = min(len(one), len(other))
    assert least >= 5 and one[:least] == other[:least]
    numerics, wrong = compare_numerics(Safety.EXACT, records[:1], records[1:])
    assert not wrong and numerics is not None


AHEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def ahead(loader):  # timm's way: the next batch is on its way before the last one is used
    held = None
    for (batch,) in loader:
        if held is not None:
            yield held
        held = batch
    yield held


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.first(x).relu())


net = Net().eval()
with torch.inference_mode():
    for _ in range(100):
        for x in ahead(DataLoader(TensorDataset(torch.randn(8000, 16)), batch_size=64)):
            net(x)
"""


def test_a_loader_that_fetches_ahead_does_not_have_the_parts_taken_for_the_model(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(AHEAD)
    command = Command(str(script), python=PYTHON, cwd=str(tmp_path))
    record = measure(command, tmp_path / "run", replace(QUICK, step="loader"), timeout=120).record
    assert [model.cls for model in record.models if model.calls] == ["Net"]


FUTURES = """
import torch
from torch import nn

class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.cell, self.head = nn.GRU(1, 16, batch_first=True), nn.GRUCell(1, 16), nn.Linear(16, 1)

    def encode(self, past):
        return self.encoder(past)[1][0]

    def sample(self, state, last):
        for _ in range(6):
            state = self.cell(last, state)
            last = self.head(state) + torch.randn_like(last)
        return last

model = Forecaster().eval()
with torch.inference_mode():
    for past in torch.randn(8 * {batches}, 12, 1).split(8):
        state = model.encode(past)
        {futures}
"""
ONE_BY_ONE = "torch.stack([model.sample(state, past[:, -1]) for _ in range({count})])"
TOGETHER = "model.sample(state.repeat({count}, 1), past[:, -1].repeat({count}, 1))"


@pytest.mark.slow
@pytest.mark.parametrize("futures", [ONE_BY_ONE, TOGETHER], ids=["one by one", "together"])
# The first batch of a short script, which is run again, has enough samples to be all that the second run measures, and
# too few for the first run, whose windows in a test are full after 55 steps at the least.
@pytest.mark.parametrize(("batches", "samples"), [(40, 50), (20000, 20)])
def test_a_batch_that_is_encoded_once_is_a_step_of_as_many_samples(
    futures: str, batches: int, samples: int, tmp_path: Path
) -> None:
    script = tmp_path / "forecast.py"
    script.write_text(FUTURES.format(futures=futures.format(count=samples), batches=batches))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert run.record.timing.samples_per_step == 8
    # The steps are those of the batches in the second run of a short script, too, not what comes fifty times in each.
    count = {row.name: row.count for row in Evidence.from_run(run).operators}
    assert count["aten::gru"] == pytest.approx(1.0)
    assert count["aten::gru_cell"] == pytest.approx(6.0 * (1 if futures == TOGETHER else samples))


MADE_ANEW = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))

    def forward(self, x):
        for each in self.layers:
            x = each(x).relu()
        return x

weights = Net().state_dict()
with torch.no_grad():
    for _ in range(3000):
        net = Net()
        net.load_state_dict(weights)
        net(torch.randn(2, 8, 24, 24))
"""


@pytest.mark.slow
def test_a_model_that_is_made_and_loaded_for_each_sample_begins_a_step_whole(tmp_path: Path) -> None:
    script = tmp_path / "enhance.py"
    script.write_text(MADE_ANEW)
    record = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    assert record.step_kind == "forward" and record.complete and record.timing.samples_per_step == 2
    called = {(each.details["module"], each.site.line) for each in record.call_sites if each.kind == "Module.call"}
    assert called == {("Net", 20)}  # and no layer by itself
