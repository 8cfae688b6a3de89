"""What it takes to give back the memory of pairs that were written out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.evidence.algebra.pairwise import Pairwise, freed_s


@pytest.mark.parametrize(
    ("rows", "idle_us", "behind", "expected"),
    [
        (512, 4000.0, 1, 4e-3),
        (512, 4000.0, 3, 4e-3),
        (512, 4000.0, 4, 0.0),
        (512, 400.0, 1, 0.0),
        (128, 4000.0, 1, 0.0),
    ],
    ids=["behind the sum", "at the function's end", "later", "Python's", "kept by malloc"],
)
def test_time_between_operators_in_which_memory_is_given_back(
    rows: int, idle_us: float, behind: int, expected: float, builder: Any, tmp_path: Path
) -> None:
    left, right = (2048, 1, 8), (1, rows, 8)
    build = builder()
    build.step(1, 0, 90_000)
    build.step(2, 100_000, 190_000)
    for begins in (0, 100_000):
        at = begins + 1000.0
        shapes = [[list(left), list(right)], [[2048, rows, 8], []], [[2048, rows]], [[2048]], [[2048]], [[2048]]]
        names = ("sub", "sum", "argmin", "mul", "mul", "mul")
        for number, (name, dims) in enumerate(zip(names, shapes, strict=True)):
            types = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
            build.operator(f"aten::{name}", at, at + 2000, **types)
            at += 2010.0 + (idle_us if number == behind else 0.0)
    evidence: Any = SimpleNamespace(detail=build.read(tmp_path), record=object())
    pairs = Pairwise("aten::sub", left, right, ("float", "float"), "train.py", 1)
    assert freed_s(evidence, pairs) == pytest.approx(expected, abs=0.2e-3)
