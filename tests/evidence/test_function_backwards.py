"""How long the backward of torch's functions takes, by the nodes that each has made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.evidence.gradients.function_backwards import backward_seconds
from advisor.harness import layout
from tests.evidence.conftest import THREAD

NODE = "autograd::engine::evaluate_function: "
_MOST = 20  # nodes of a step
# A solve of 100 µs (two nodes, 40 µs), a product of 20 µs (one node, 60 µs), and their numbers in each step.
OPERATORS = (
    ("aten::linalg_solve", 10, 110, 0),
    ("aten::linalg_lu_solve", 20, 100, 1),
    ("aten::matmul", 120, 140, 2),
    ("aten::relu", 150, 160, 3),
    (f"{NODE}ReluBackward0", 290, 295, 3),
    (f"{NODE}MmBackward0", 300, 360, 2),
    (f"{NODE}LinalgLuSolveBackward0", 360, 390, 1),
    (f"{NODE}SolveBackward0", 390, 400, 0),
)


Event = tuple[str, int, int, int]


def recorded(build: Any, folder: Path, more: Sequence[Event] = (), thread: int = THREAD) -> Evidence:
    """Three steps of OPERATORS, and `more` of a thread."""
    for number in range(3):
        begin = 500 * number
        build.step(number, begin, begin + 500)
        for name, start, end, node in OPERATORS:
            build.operator(name, begin + start, begin + end, **{"Sequence number": _MOST * number + node})
        build.operator("aten::matmul", begin + 450, begin + 480)  # under no_grad: no node is its own
        for name, start, end, node in more:
            build.operator(name, begin + start, begin + end, thread, **{"Sequence number": _MOST * number + node})
        build.annotation(layout.FORWARD_RANGE, begin + 5, begin + 200)
        build.annotation(layout.BACKWARD_RANGE, begin + 280, begin + 410)
    return Evidence.from_trace(build.read(folder))


@pytest.fixture
def evidence(builder: Any, tmp_path: Path) -> Evidence:
    return recorded(builder(), tmp_path)


@pytest.mark.parametrize(
    ("forward_s", "backward_s"),
    [
        ({"linalg_solve": 0.010}, 0.004),
        ({"matmul": 0.001, "linalg_solve": 0.010}, 0.007),
        ({"__matmul__": 0.001, "linalg_solve": 0.010}, 0.007),
        ({"linalg_solve": 0.005, "__rmatmul__": 0.002}, 0.008),
        ({"matmul": 0.010}, 0.020),  # and no more than twice of all
    ],
)
def test_each_function_by_its_own_nodes(evidence: Evidence, forward_s: dict[str, float], backward_s: float) -> None:
    assert backward_seconds(evidence, forward_s) == pytest.approx(backward_s)


def test_what_the_trace_has_under_no_such_name_goes_by_the_whole_step(evidence: Evidence) -> None:
    whole = evidence.breakdown.share("backward") / evidence.breakdown.share("forward")
    assert 0 < whole < 2
    assert backward_seconds(evidence, {"multi_head_attention_forward": 0.01}) == pytest.approx(0.01 * whole)


def test_what_lies_between_has_its_own_nodes(builder: Any, tmp_path: Path) -> None:
    """A function of the user's, recorded under its name, and the derivative that a backward records in turn."""
    more = [
        ("Fold", 165, 200, 4),
        (f"{NODE}FoldBackward", 405, 460, 4),
        ("aten::mul", 410, 420, 6),
        (f"{NODE}MulBackward0", 460, 480, 6),
    ]
    evidence = recorded(builder(), tmp_path, more)
    assert backward_seconds(evidence, {"relu": 0.001}) == pytest.approx(0.0005)  # not the fold's as well
    assert backward_seconds(evidence, {"linalg_solve": 0.010}) == pytest.approx(0.004)


def test_of_several_threads_nodes_are_nobodys(builder: Any, tmp_path: Path) -> None:
    evidence = recorded(builder(), tmp_path, [("aten::matmul", 20, 30, 1)], thread=THREAD + 7)
    whole = evidence.breakdown.share("backward") / evidence.breakdown.share("forward")
    assert backward_seconds(evidence, {"linalg_solve": 0.010}) == pytest.approx(0.01 * whole)
