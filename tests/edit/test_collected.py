"""Which layers' results a loop only collects."""

from __future__ import annotations

import pytest

from advisor.edit.collected import Collected, collected_at

LOOP = """def forward(self, xs, h):
    outputs = []
    for x in xs:
        h = self.cell(x, h)
{body}    return outputs
"""


def found(body: str, which: str = "self.head") -> Collected | None:
    text = LOOP.format(body="".join(f"        {line}\n" for line in body.split("\n")))
    line = next(number for number, each in enumerate(text.split("\n"), 1) if which in each)
    return collected_at(text, line)


@pytest.mark.parametrize(
    ("body", "given", "kept"),
    [
        pytest.param("outputs.append(self.head(h))", "h", "outputs", id="appended"),
        pytest.param("outputs.append(self.head(self.dropout(h)))", "self.dropout(h)", "outputs", id="of a layer's"),
        pytest.param("outputs.append(torch.log_softmax(self.head(h), -1))", "h", "outputs", id="computed further"),
        pytest.param("outputs[:, t] = self.head(h)", "h", "outputs", id="written"),
        pytest.param("scores = self.head(h)\noutputs.append(scores)", "h", "outputs", id="by a name"),
        pytest.param("scores = self.head(h)\noutputs[:, t, :] = scores.squeeze(1)", "h", "outputs", id="by a view"),
        pytest.param("self.kept.append(self.head(h))", "h", "self.kept", id="in an attribute"),
    ],
)
def test_what_is_only_kept_can_wait(body: str, given: str, kept: str) -> None:
    assert found(body) == Collected(3, "self.head", given, kept)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("y = self.head(h)\noutputs.append(y)\nh = h + y.mean()", id="it goes into the next round"),
        pytest.param("outputs.append(self.head(h))\nx = outputs[-1]", id="what is kept is read"),
        pytest.param("outputs.append(self.head(h))\nif len(outputs) > 3:\n    break", id="it is counted"),
        pytest.param("y = self.head(h)\nword = y.argmax(-1)\noutputs.append(y)", id="a word is chosen"),
        pytest.param("y = self.head(h)\noutputs.append(y)\ny = y.relu()\nh = y", id="it is given anew"),
        pytest.param("h = self.head(h)", id="it is the state"),
        pytest.param("loss = loss + f(self.head(h))", id="it is summed up"),
        pytest.param("outputs.append(self.head(h, x))", id="of two"),
        pytest.param("outputs.append(torch.relu(self.head))", id="not called"),
    ],
)
def test_what_a_round_reads_cannot(body: str) -> None:
    assert found(body) is None


def test_without_a_loop_there_is_nothing_to_wait_for() -> None:
    assert collected_at("def forward(self, h):\n    outputs.append(self.head(h))\n", 2) is None
    assert collected_at("for t in range(3):\n    def f(h):\n        out.append(head(h))\n", 3) is None
    assert collected_at("for t in range(3)\n", 1) is None
