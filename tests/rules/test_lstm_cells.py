"""Cells that are called for one known element after another are found; decoders, masks and resets are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.evidence.python_loops.cell_loops import CellLoop, cell_loops
from advisor.evidence.python_loops.cells import lstm_cells
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.lstm_cells import LstmCells
from tests.conftest import PYTHON, QUICK

RULE = LstmCells()
MADE = "self.cell = nn.LSTMCell(8, 16)\nself.low = nn.LSTMCell(8, 16)\nself.upper = nn.LSTMCell(16, 16)\n"

KNOWN = {
    "a sequence": "for t in range(n):\n    h, c = self.cell(x[:, t], (h, c))\n    found.append(h)\n",
    "elements themselves": "for x in xs:\n    h = self.low(x, h)\n",
    "by name": "for x in xs:\n    h = self.low(x, hx=h)\n",
    "features of each": "for t in range(n):\n    e = self.embed(ids[:, t])\n    h = self.low(e, h)\n    y[:, t] = h\n",
    "a state as one": "for t in range(n):\n    state = self.cell(x[t], state)\n    found.append(state[0])\n",
    "backwards": "for t in reversed(range(n)):\n    h = self.low(x[t], h)\n",
    "a second layer": "for t in range(n):\n    h = self.low(x[t], h)\n    g = self.upper(h, g)\n    found.append(g)\n",
}  # fmt: skip
LEVELS = "self.levels = nn.ModuleList(nn.LSTMCell(8 if i == 0 else 16, 16) for i in range(2))\n"
ON_TOP = {
    "states as pairs": "for e in x.unbind(1):\n    for i, cell in enumerate(self.levels):\n"
    "        s[i] = cell(e, s[i])\n        e = s[i][0]\n    found.append(e)\n",
    "two lists": "for t in range(n):\n    e = self.embed(x[:, t])\n    for i, cell in enumerate(self.levels):\n"
    "        h[i], c[i] = cell(e, (h[i], c[i]))\n        e = self.drop(h[i])\n    found.append(h[-1])\n",
    "by number": "for t in range(n):\n    e = x[t]\n    for i in range(2):\n"
    "        h[i], c[i] = self.levels[i](e, (h[i], c[i]))\n        e = h[i]\n    y[:, t] = e\n",
}
NOT_ON_TOP = {
    "a decoder": ON_TOP["by number"].replace("e = x[t]", "e = self.embed(y[:, t - 1])"),
    "attention": ON_TOP["two lists"].replace("x[:, t])", "x[:, t] + self.look(h[-1]))"),
    "a mask": ON_TOP["two lists"].replace("        e =", "        h[i] = h[i] * mask[t]\n        e ="),
    "its own input for each": ON_TOP["by number"].replace("        e = h[i]\n", ""),
    "a mask in place": ON_TOP["by number"].replace("        e = h", "        h[i] *= mask[t]\n        e = h"),
    "a reset in place": ON_TOP["by number"].replace("        e = h", "        h[i].mul_(mask[t])\n        e = h"),
    "residual": ON_TOP["by number"].replace("e = h[i]", "e = e + h[i]"),
    "the cell's own state goes up": ON_TOP["by number"].replace("e = h[i]", "e = c[i]"),
    "norm between": ON_TOP["by number"].replace("e = h[i]", "e = self.norms[i](h[i])"),
    "one cell for all": ON_TOP["by number"].replace("self.levels[i]", "self.levels[0]"),
    "the first only": ON_TOP["by number"].replace("    e = x[t]", "    if t == 0:\n        e = start"),
    "some left out": ON_TOP["by number"].replace("    e = x[t]", "    if done[t]:\n        continue\n    e = x[t]"),
    "a way out": ON_TOP["by number"] + "    if e.sum() > 3:\n        break\n",
    "one level, elsewhere": ON_TOP["by number"] + "h, c = self.levels[0](x, (h, c))\n",
    "levels alone": "for i, cell in enumerate(self.levels):\n    h[i], c[i] = cell(e, (h[i], c[i]))\n    e = h[i]\n",
}  # fmt: skip
NEEDED = {
    "a decoder": "for t in range(n):\n    h = self.low(y, h)\n    y = self.out(h)\n",
    "a decoder that collects": "for t in range(n):\n    h = self.low(found[-1], h)\n    found.append(self.out(h))\n",
    "attention": "for t in range(n):\n    a = self.attend(memory, h)\n    h = self.low(torch.cat([x[t], a]), h)\n",
    "layers that look back": "for t in range(n):\n    h = self.low(x[t] + g, h)\n    g = self.upper(h, g)\n",
    "a mask": "for t in range(n):\n    h = self.low(x[t], h)\n    h = h * mask[t]\n",
    "a mask on the way in": "for t in range(n):\n    h = self.low(x[t], h * mask[t])\n",
    "a reset": "for t in range(n):\n    if done[t]:\n        h = start\n    h = self.low(x[t], h)\n",
    "norm": "for t in range(n):\n    h = self.norm(self.low(x[t], h))\n",
    "an object's state": "for t in range(n):\n    self.h = self.low(x[t], self.h)\n",
    "a way out": "for t in range(n):\n    h = self.low(x[t], h)\n    if h.sum() > 3:\n        break\n",
    "a loop over steps": "for t in range(n):\n    h = self.low(x[t], h)\n    loss(h).backward()\n",
    "one call, elsewhere": "h = self.low(x, h)\n",
    "one of two": "for t in range(n):\n    h = self.low(x[t], h)\nfor t in range(n):\n    h = self.low(h, h)\n",
    "of two, one is masked": "for t in range(n):\n    h = self.low(x[t], h)\n    g = self.upper(h, g * mask)\n",
    "not Python": "for t in:\n",
}


@pytest.mark.parametrize("text", KNOWN.values(), ids=KNOWN.keys())
def test_loops_over_what_is_known(text: str) -> None:
    found = cell_loops(MADE + text)
    assert found is not None and [loop.line for loop in found] == [4]


@pytest.mark.parametrize("text", NEEDED.values(), ids=NEEDED.keys())
def test_loops_that_need_what_they_computed(text: str) -> None:
    assert cell_loops(MADE + text) is None


@pytest.mark.parametrize("text", ON_TOP.values(), ids=ON_TOP.keys())
def test_cells_on_top_of_each_other(text: str) -> None:
    assert cell_loops(LEVELS + text) == (CellLoop(2, ("self.levels",)),)


@pytest.mark.parametrize("text", NOT_ON_TOP.values(), ids=NOT_ON_TOP.keys())
def test_cells_on_top_of_each_other_that_need_what_they_computed(text: str) -> None:
    assert cell_loops(LEVELS + text) is None


WHOLE = "self.rnn = nn.LSTM(8, 16, batch_first=True)\n"
ELEMENTS = {
    "of a sequence": "for t in range(n):\n    y, s = self.rnn(x[:, t : t + 1], s)\n    found.append(self.out(y))\n",
    "a pair": "for t in range(n):\n    y, (h, c) = self.rnn(self.embed(ids[:, t])[:, None], (h, c))\n    z[t] = y\n",
    "its output is changed": "for t in range(n):\n    y, s = self.rnn(x[t][None], s)\n    y = self.out(y)\n",
    "sequences, elsewhere": "for t in range(n):\n    y, s = self.rnn(x[t][None], s)\nself.rnn(memory)\n"
    "for x in batches:\n    y, _ = self.rnn(x)\n",
}
NO_ELEMENTS = {
    "a decoder": "for t in range(n):\n    y, s = self.rnn(e, s)\n    e = self.embed(y.argmax(-1))\n",
    "at times": "for t in range(n):\n    y, s = self.rnn(e, s)\n    e = y if drawn() else self.embed(x[:, t])\n",
    "attention": "for t in range(n):\n    y, s = self.rnn(x[t] + self.look(s[0]), s)\n",
    "a mask": "for t in range(n):\n    y, s = self.rnn(x[t][None], s)\n    s = s * mask[t]\n",
    "a state alone": "for t in range(n):\n    s = self.rnn(x[t][None], s)[1]\n",
    "decoded, too": ELEMENTS["a pair"] + "for t in range(n):\n    y, s = self.rnn(y, s)\n",
}


@pytest.mark.parametrize("text", ELEMENTS.values(), ids=ELEMENTS.keys())
def test_an_lstm_that_gets_elements_which_are_known(text: str) -> None:
    assert cell_loops(WHOLE + text) == (CellLoop(2, ("self.rnn",), whole=True),)


@pytest.mark.parametrize("text", NO_ELEMENTS.values(), ids=NO_ELEMENTS.keys())
def test_an_lstm_that_needs_what_it_computed(text: str) -> None:
    assert cell_loops(WHOLE + text) is None


def test_an_lstm_that_gets_sequences_is_no_loop() -> None:
    assert cell_loops(WHOLE + "y, s = self.rnn(x)\nfor x in batches:\n    y, s = self.rnn(x)\n") == ()


def test_cells_by_the_names_of_the_source() -> None:
    assert cell_loops(MADE + KNOWN["a second layer"]) == (CellLoop(4, ("self.low", "self.upper")),)
    assert cell_loops("x = 1\n") == ()


SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.width, self.cell, self.out = width, nn.LSTMCell(12, width), nn.Linear(width, 1)

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.width)
        for t in range(x.size(1)):
            {call}
        return self.out(h)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(300):
    x, y = torch.randn(16, 24, 12), torch.randn(16, 1)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run_of(tmp_path: Path, **parts: str) -> Evidence:
    script = tmp_path / "script.py"
    text = SCRIPT.format(**parts)
    if "self.rnn" in text:
        text = text.replace("self.width, self.cell", "self.width, self.rnn").replace("LSTMCell(12", "LSTM(12")
        text = text.replace("x.new_zeros(len(x)", "x.new_zeros(1, len(x)").replace("self.out(h)", "self.out(h[0])")
    script.write_text(text)
    return Evidence.from_run(measure(Command(str(script), python=PYTHON), tmp_path / "run", QUICK))


def test_a_sequence_is_given_element_by_element(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, call="h, c = self.cell(x[:, t], (h, c))")
    found = lstm_cells(evidence)
    assert found is not None and found.calls == 24
    assert found.sizes == ((24.0, 16, 12, 48),)
    # Of the step as traced, the cells with their backward are most, and not more than all.
    assert evidence.trace_step_s is not None
    assert 0.3 < (found.forward_s + found.backward_s) / evidence.trace_step_s < 1.0
    assert found.forward_s > 0 and found.backward_s > 0
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line == SCRIPT[: SCRIPT.index("for t in")].count("\n") + 1
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "nn.LSTM" in fix.text


def test_an_lstm_is_given_one_element_after_another(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, call="y, (h, c) = self.rnn(x[None, :, t], (h, c))")
    found = lstm_cells(evidence)
    assert found is not None and found.calls == 24 and found.sizes == ((24.0, 16, 12, 48),)
    assert evidence.trace_step_s is not None
    assert 0.3 < (found.forward_s + found.backward_s) / evidence.trace_step_s < 1.0
    (finding,) = RULE.check(evidence)
    assert finding.gain.likely > 1.2 and "calls self.rnn 24 times" in finding.summary
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "Give self.rnn the whole sequence at once" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_a_decoder_is_left_alone(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, call="h, c = self.cell(x[:, t] + self.out(h), (h, c))")
    assert lstm_cells(evidence) is not None
    assert not list(RULE.check(evidence))
