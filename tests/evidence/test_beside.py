"""Where in the source the call is that takes most of what a step does beside the model."""

from __future__ import annotations

import pytest

from advisor.evidence.beside import Beside, line_of, source_of

SCRIPT = """\
import numpy as np

def draw(rng):
    return rng.choice(9)

class Loop:
    @timed
    def run(self, rng):
        for step in range(9):
            index = rng.choice(9)
            self.update(rng.choice(3))

index = np.random.choice(9)
"""


@pytest.mark.parametrize(
    ("name", "line", "calls", "at"),
    [
        ("draw", 3, "choice", 4),
        ("draw", 3, "", 3),  # its own lines
        ("run", 7, "choice", 10),  # by its decorator
        ("run", 11, "choice", 10),  # where it was when the window began
        ("<module>", 0, "choice", 13),
        ("draw", 3, "permutation", 3),  # what the source does not call by that name
    ],
)
def test_line_of_a_call(name: str, line: int, calls: str, at: int) -> None:
    found = Beside("train.py", line, name, calls, 0.9)
    assert line_of(found, lambda _: SCRIPT).line == at
    assert line_of(found, lambda _: "def f(:\n").line == max(line, 1)


def test_source_is_that_of_the_function() -> None:
    assert source_of(Beside("train.py", 3, "draw", "", 0.9), lambda _: SCRIPT).startswith("def draw(rng)")
    assert source_of(Beside("train.py", 3, "draw", "", 0.9), lambda _: "def f(:\n") == ""
    assert str(Beside("a/train.py", 3, "draw", "choice", 0.9)) == "choice, called in draw (train.py:3)"
    assert str(Beside("a/train.py", 0, "<module>", "randperm", 0.9)) == "randperm, called in train.py"
