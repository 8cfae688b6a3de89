"""cuDNN measures once for each shape: worth it where there are few of them, batches of other sizes counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advisor.rules.cudnn_benchmark import CudnnBenchmark

from tests.rules.test_checks import A100, CONVOLUTION, ELEMENTWISE


def convolving(scene: Any, *grids: int) -> Any:
    """Steps of 20 ms that are convolutions, each of as many blocks as its batch asks for; the device is a step behind.

    What is beside the convolutions, a loss over the pixels that count, is of another size in each step.
    """
    made = scene(20.0, A100)
    made.record.shapes_vary = False
    for number, grid in enumerate(grids):
        for name, blocks, start, end in ((CONVOLUTION, grid, 19.0, 37.5), (ELEMENTWISE, 9 + number, 37.5, 38.9)):
            made._device("kernel", name, number, start, end, 0.1 + start / 100, 0.11 + start / 100, "cudaLaunchKernel",
                         grid=[blocks, 1, 1], block=[256, 1, 1])  # fmt: skip
    made.operator("aten::empty", 0.0, 0.05)
    return made


@pytest.mark.parametrize(
    ("grids", "proposed"),
    [
        pytest.param((640, 640, 640), True, id="one-size"),
        pytest.param((640, 640, 200), True, id="a-smaller-last-batch"),
        pytest.param((640, 610, 200), False, id="a-size-for-each-step"),
    ],
)
def test_batches_of_many_sizes_keep_the_heuristic(
    grids: tuple[int, ...], proposed: bool, scene: Any, tmp_path: Path
) -> None:
    evidence = convolving(scene, *grids).evidence(tmp_path)
    assert bool(list(CudnnBenchmark().check(evidence))) is proposed


@pytest.mark.parametrize(("grid", "proposed"), [(640, True), (330, False)])
def test_the_window_with_shapes_tells_of_sizes_too(grid: int, proposed: bool, scene: Any, tmp_path: Path) -> None:
    evidence = convolving(scene, 640, 640, 200).evidence(tmp_path)
    (tmp_path / "detail").mkdir()
    detail = convolving(scene, grid).evidence(tmp_path / "detail").trace
    assert bool(list(CudnnBenchmark().check(replace(evidence, detail=detail)))) is proposed
