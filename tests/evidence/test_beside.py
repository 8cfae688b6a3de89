"""Where in the source the call is that takes most of what a step does beside the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.evidence.beside import Beside, called_source, lengthening, line_of, source_of, spent_beside
from advisor.evidence.steps import step_windows
from advisor.trace import read_trace

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


def test_how_much_is_written_down_for_it(tmp_path: Path) -> None:
    found = beside([DRAW, ("random.py(350): choices", 60, 400), ("random.py(351): randbelow", 500, 400)], tmp_path)
    assert found is not None and found.written == 3


def test_what_hooks_of_the_harness_look_at_is_no_work_of_the_scripts(tmp_path: Path) -> None:
    call = ("torch/nn/modules/module.py(1783): _call_impl", 100, 800)
    hook = ("advisor/harness/models.py(75): _before", 110, 700)
    assert beside([DRAW, call, ("torch/nn/modules/linear.py(9): extra", 110, 700)], tmp_path) is not None
    assert beside([DRAW, call, hook, ("advisor/harness/looking.py(40): has_fast_path", 120, 600)], tmp_path) is None


# Calls in a step of 1000 us: (name, where it begins, how long it takes).
LOOP = ("train.py(1): <module>", 0, 1000)
DRAW = ("train.py(3): draw", 50, 900)


def beside(calls: list[tuple[str, float, float]], folder: Path) -> Beside | None:
    """What is found in a step of LOOP, and `calls` in it."""
    events = [{"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000}]
    events += [{"cat": "python_function", "name": name, "ts": at, "dur": took} for name, at, took in [LOOP, *calls]]
    whole = [{"ph": "X", "pid": 1, "tid": 1, "args": {}, **each} for each in events]
    (folder / "a.trace.json").write_text(json.dumps({"traceEvents": whole}))
    trace = read_trace(folder / "a.trace.json")
    return spent_beside(trace, step_windows(trace), ["train.py"])


@pytest.mark.parametrize(
    ("calls", "named", "part"),
    [
        # What a comprehension of the function's takes is the function's own, with what the comprehension calls.
        ([DRAW, ("train.py(4): <listcomp>", 60, 880), ("train.py(4): <genexpr>", 70, 600)], "", 0.9),
        ([DRAW, ("random.py(350): choices", 60, 800)], "choices", 0.8),
        ([DRAW, ("random.py(350): choices", 60, 800), ("random.py(351): <listcomp>", 70, 700)], "choices", 0.8),
        # A built-in function that goes through an expression of the function's.
        ([DRAW, ("<built-in function all>", 60, 800), ("train.py(4): <genexpr>", 70, 700)], "", 0.9),
        # A decorator's function is named by what it wraps; not by what it does itself, nor by one of several.
        (
            [DRAW, ("torch/_contextlib.py(90): decorate_context", 60, 800), ("grid.py(9): save_image", 80, 700)],
            "save_image",
            0.8,
        ),
        (
            [DRAW, ("torch/_contextlib.py(90): decorate_context", 60, 800), ("grad_mode.py(9): clone", 80, 100)],
            "decorate_context",
            0.8,
        ),
        (
            [
                DRAW,
                *(
                    (name, at, 400)
                    for at in (60, 500)
                    for name in ("metric.py(5): wrapped_func", f"metric.py({at}): compute_{at}")
                ),
            ],
            "wrapped_func",
            0.8,
        ),
        # Half of it here, and half of it there.
        ([DRAW, ("random.py(350): choices", 60, 400), ("<built-in function sum>", 500, 400)], "", 0.9),
    ],
)
def test_part_of_a_function_is_all_that_it_takes(
    calls: list[tuple[str, float, float]], named: str, part: float, tmp_path: Path
) -> None:
    found = beside(calls, tmp_path)
    assert found is not None and (found.name, found.line, found.calls) == ("draw", 3, named)
    assert found.part == pytest.approx(part)


def test_called_functions_of_the_file_are_read() -> None:
    text = "def iou(a, b):\n    return a\n\ndef other():\n    pass\n\n"
    text += "def thin(rows):\n    return all(iou(a, 0) for a in rows)\n"
    assert called_source(Beside("post.py", 7, "thin", "all", 0.9), lambda _: text) == "def iou(a, b):\n    return a"
    assert called_source(Beside("post.py", 7, "thin", "all", 0.9), lambda _: "def f(:\n") == ""


@pytest.mark.parametrize(("times", "named"), [(1000, "draw"), (100, "overlap")])
def test_a_small_function_that_a_loop_asks_is_the_loops(times: int, named: str, tmp_path: Path) -> None:
    """It takes two thirds of the loop around it; called a thousand times in a step, it is the loop's."""
    each_us = 900 / times
    calls = [("train.py(9): overlap", 50 + each_us * at, each_us * 2 / 3) for at in range(times)]
    found = beside([DRAW, *calls], tmp_path)
    assert found is not None and (found.name, found.calls) == (named, "")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([10.0 + number for number in range(40)], 47.0),
        ([10.0] * 40, None),
        ([10.0] * 20 + [20.0] * 20, None),
        ([50.0 - number for number in range(40)], None),
        ([10.0 + number for number in range(12)], None),
    ],
    ids=["longer", "alike", "once", "shorter", "few"],
)
def test_steps_that_take_ever_longer(steps: list[float], expected: float | None) -> None:
    assert lengthening(steps) == expected
