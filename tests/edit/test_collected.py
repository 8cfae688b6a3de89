"""Which layers' results a loop only collects."""

from __future__ import annotations

import ast

import pytest

from advisor.edit.python_loops.collected import Collected, collected_at
from advisor.harness.layout import Site

LOOP = """def forward(self, xs, h):
    outputs = []
    for x in xs:
        h = self.cell(x, h)
{body}    return outputs
"""


def site_of(text: str, call: str) -> Site:
    """Where a run would say that the call is: with its columns, as Python counts them."""
    node = next(
        each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call) and ast.unparse(each).startswith(call)
    )
    return Site("model.py", node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def found(body: str, which: str = "self.head(", columns: bool = True) -> Collected | None:
    text = LOOP.format(body="".join(f"        {line}\n" for line in body.split("\n")))
    site = site_of(text, which)
    return collected_at(text, site if columns else Site("model.py", site.line))


@pytest.mark.parametrize(
    ("body", "given"),
    [
        pytest.param("outputs.append(self.head(h))", "h", id="appended"),
        pytest.param("outputs.append(self.head(self.dropout(h)))", "self.dropout(h)", id="of a layer's"),
        pytest.param("outputs.append(torch.log_softmax(self.head(h), -1))", "h", id="computed further"),
        pytest.param("outputs.append(self.softmax(self.head(h)))", "h", id="by another layer"),
        pytest.param("outputs[:, t] = self.head(h)", "h", id="written"),
        pytest.param("scores = self.head(h)\noutputs.append(scores)", "h", id="by a name"),
        pytest.param("scores = self.head(h)\noutputs[:, t, :] = scores.squeeze(1)", "h", id="by a view"),
    ],
)
def test_what_is_only_kept_can_wait(body: str, given: str) -> None:
    assert found(body) == Collected(3, "self.head", given, "outputs")


def test_without_columns_the_innermost_call_is_meant() -> None:
    assert found("outputs.append(self.head(h))", columns=False) == Collected(3, "self.head", "h", "outputs")
    assert found("outputs.append(self.head(h) + self.other(h))", columns=False) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("y = self.head(h)\noutputs.append(y)\nh = h + y.mean()", id="it goes into the next round"),
        pytest.param("outputs.append(self.head(h))\nx = outputs[-1]", id="what is kept is read"),
        pytest.param("outputs.append(self.head(h))\nif len(outputs) > 3:\n    break", id="it is counted"),
        pytest.param("y = self.head(h)\nword = y.argmax(-1)\noutputs.append(y)", id="a word is chosen"),
        pytest.param("outputs.append(y := self.head(h))\nword = y.argmax(-1)", id="on the way"),
        pytest.param("y = self.head(h)\noutputs.append(y)\ny = y.relu()\nh = y", id="it is given anew"),
        pytest.param("h = self.head(h)", id="it is the state"),
        pytest.param("loss = loss + f(self.head(h))", id="it is summed up"),
        pytest.param("outputs.append(self.head(h, x))", id="of two"),
        pytest.param("outputs['y'].append(self.head(h))\nx = outputs['y'][-1]", id="in a dict"),
        pytest.param("self.kept.append(self.head(h))", id="in an attribute, which anybody reads"),
        pytest.param("outputs[b][t] = self.head(outputs[b][t - 1])", id="of what is kept"),
        pytest.param("outputs.append(self.head(self.start))", id="of nothing that the loop makes"),
        pytest.param("h.lerp_(x, 0.1)\noutputs.append(self.head(h))", id="the state is written to"),
        pytest.param("h[0] = x\noutputs.append(self.head(h))", id="a part of it is"),
        pytest.param("self.head.load_state_dict(x)\noutputs.append(self.head(h))", id="its weights change"),
    ],
)
def test_what_a_round_reads_cannot(body: str) -> None:
    assert found(body) is None


def test_the_layer_is_the_same_in_all_rounds() -> None:
    assert found("for head in self.heads:\n    outputs.append(head(h))", "head(") is None


def test_without_a_loop_there_is_nothing_to_wait_for() -> None:
    for text in (
        "def forward(self, h):\n    outputs.append(head(h))\n",
        "for t in range(3):\n    def f(h):\n        out.append(head(h))\n",
    ):
        assert collected_at(text, site_of(text, "head(")) is None
    assert collected_at("for t in range(3)\n", Site("model.py", 1)) is None
