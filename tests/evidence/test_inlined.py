"""Methods that a loop's rounds call, written out in it."""

from __future__ import annotations

import ast

import pytest

from advisor.evidence.python_loops.cell_loops import cell_loops
from advisor.evidence.python_loops.inlined import with_methods_in_loops

STEP = """
class Tracker(nn.Module):
    def __init__(self):
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def step(self, row, state):
        \"\"\"One hour.\"\"\"
        hidden, state = self.lstm(row.unsqueeze(1), state)
        return self.head(hidden[:, -1]), state

    def score(self, record):
        state, errors = None, []
        for t in range(record.shape[1] - 1):
            guess, state = self.step(record[:, t], state)
            errors.append(guess - record[:, t + 1])
        return errors
"""


def test_what_a_method_does_is_in_the_loop_by_the_names_there() -> None:
    tree = with_methods_in_loops(ast.parse(STEP))
    written = ast.unparse(tree)
    assert "def step" not in written
    assert "state = self.lstm(record[:, t].unsqueeze(1), state)" in written
    assert "guess = self.head(" in written


def test_a_sequence_goes_through_an_lstm_step_by_step_in_a_method() -> None:
    loops = cell_loops(STEP)
    assert loops is not None and [(each.line, each.cells, each.whole) for each in loops] == [(13, ("self.lstm",), True)]


@pytest.mark.parametrize(
    ("what", "otherwise"),
    [
        ("guess, state = self.step(record[:, t], state)", "guess, state = self.step(guess, state)"),  # a decoder
        ("        return self.head", "        if done:\n            return None\n        return self.head"),
        ("errors.append(guess", "state = reset(state)\n            errors.append(guess"),
    ],
)
def test_what_needs_the_round_before_stays(what: str, otherwise: str) -> None:
    assert STEP.count(what) == 1
    assert not cell_loops(STEP.replace(what, otherwise))


@pytest.mark.parametrize(
    "more",
    [
        "\nguess, state = tracker.step(now, state)\n",
        "    def generate(self, y):\n        return unroll(self.step, y)\n",
        "\nclass Other:\n    def step(self, y, state):\n        return y, state\n",
    ],
)
def test_a_method_that_is_mentioned_elsewhere_too_stays_where_it_is(more: str) -> None:
    tree = ast.parse(STEP + more)
    assert ast.unparse(with_methods_in_loops(tree)) == ast.unparse(tree)
    assert ast.unparse(with_methods_in_loops(ast.parse(STEP), "y, h = model.step(y, h)")).count("def step") == 1


def test_a_decoder_s_step_of_another_object_is_no_known_sequence() -> None:
    text = """
class Encoder(nn.Module):
    def __init__(self):
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x, h, c):
        for t in range(len(x)):
            h, c = self.cell(x[t], (h, c))
        return h, c


class Decoder(nn.Module):
    def __init__(self):
        self.cell = nn.LSTMCell(8, 16)

    def step(self, y, h, c):
        h, c = self.cell(y, (h, c))
        return self.out(h), h, c


class Model(nn.Module):
    def forward(self, x, y, h, c):
        h, c = self.encoder(x, h, c)
        for _ in range(20):
            y, h, c = self.decoder.step(y, h, c)
        return y
"""
    assert cell_loops(text) is None


def test_a_state_that_the_caller_does_not_take_back_is_not_changed() -> None:
    text = STEP.replace("guess, state = self.step", "guess = self.step").replace("[:, -1]), state", "[:, -1])")
    tree = ast.parse(text)
    assert ast.unparse(with_methods_in_loops(tree)) == ast.unparse(tree)
