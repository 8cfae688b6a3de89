"""How long the backward of torch's functions takes, by the nodes that each has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.evidence.function_backwards import backward_seconds
from advisor.harness import layout

NODE = "autograd::engine::evaluate_function: "
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


@pytest.fixture
def evidence(builder: Any, tmp_path: Path) -> Evidence:
    build = builder()
    for number in range(3):
        begin = 500 * number
        build.step(number, begin, begin + 500)
        for name, start, end, node in OPERATORS:
            build.operator(name, begin + start, begin + end, **{"Sequence number": 4 * number + node})
        build.operator("aten::matmul", begin + 450, begin + 480)  # under no_grad: no node is its own
        build.annotation(layout.FORWARD_RANGE, begin + 5, begin + 200)
        build.annotation(layout.BACKWARD_RANGE, begin + 280, begin + 410)
    return Evidence.from_trace(build.read(tmp_path))


@pytest.mark.parametrize(
    ("forward_s", "backward_s"),
    [
        ({"linalg_solve": 0.010}, 0.004),
        ({"matmul": 0.001}, 0.003),
        ({"__matmul__": 0.001}, 0.003),
        ({"linalg_solve": 0.005, "__rmatmul__": 0.002}, 0.008),
        ({"linalg_lu_solve": 0.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_each_function_by_its_own_nodes(evidence: Evidence, forward_s: dict[str, float], backward_s: float) -> None:
    assert backward_seconds(evidence, forward_s) == pytest.approx(backward_s)


def test_what_the_trace_has_under_no_such_name_goes_by_the_whole_step(evidence: Evidence) -> None:
    whole = evidence.breakdown.share("backward") / evidence.breakdown.share("forward")
    assert 0 < whole < 2
    assert backward_seconds(evidence, {"multi_head_attention_forward": 0.01}) == pytest.approx(0.01 * whole)
