"""Every reference trace is read, and what is plain interval arithmetic agrees with the brute-force figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.trace import Trace, read_trace
from advisor.trace import intervals as iv

NAMES = [
    "a100-ddp-training.json.gz", "a100-triton.json.gz", "b200-eager-inference.json.gz", "cpu-only-rank.json.gz",
    "h100-bert-small-inference.json.gz", "h100-vit-inference.json.gz", "mi250-toy-training.json.gz",
    "mi300x-compiled-triton.json.gz", "mi300x-qwen-inference.json.gz", "mi300x-sglang-decode.json.gz",
    "mi300x-vllm-decode-graphs.json.gz", "no-gpu-rank.json.gz", "v100-resnet50-workers0.pt.trace.json.gz",
    "v100-resnet50-workers4.pt.trace.json.gz", "sampled_rank-0.json.gz", "sampled_rank-1.json.gz",
]  # fmt: skip


def figures(trace: Trace) -> dict[str, float]:
    """The figures by the definitions of the reference, in numpy."""
    kernels, copies, steps = trace.kernels, trace.copies, trace.steps
    found: dict[str, float] = {"kernels": len(kernels), "copies": len(copies), "steps": len(steps)}
    start = np.concatenate((kernels.start, copies.start))
    end = np.concatenate((kernels.end, copies.end))
    if len(start):
        window = int(end.max() - start.min())
        h2d = np.array([trace.name(kind) == "HtoD" for kind in copies.kind], bool)
        found |= {
            "gpu_window_ms": window / 1e6,
            "gpu_busy_share": iv.total(start, end) / window,
            "kernel_busy_ms": iv.total(kernels.start, kernels.end) / 1e6,
            "kernel_sum_ms": float((kernels.end - kernels.start).sum()) / 1e6,
            "h2d_ms": float((copies.end - copies.start)[h2d].sum()) / 1e6,
            "h2d_bytes": int(copies.bytes[h2d].sum()),
            "h2d_pageable": int(copies.pageable[h2d].sum()),
        }
    if len(steps):
        low, high = int(steps.start.min()), int(steps.end.max())
        found["mean_step_ms"] = float((steps.end - steps.start).mean()) / 1e6
        if len(kernels):
            inside = iv.clip(kernels.start, kernels.end, low, high)
            found["kernel_busy_share_of_steps"] = iv.total(*inside) / (high - low)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_figures_agree_with_brute_force(shared_traces: Path, name: str) -> None:
    expected: dict[str, Any] = json.loads((shared_traces / "expected.json").read_text())[name]
    path = shared_traces / ("two-ranks" if name.startswith("sampled") else "") / name
    trace = read_trace(path)
    assert trace.warnings == ()
    assert figures(trace) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_every_reference_trace_is_listed_here(shared_traces: Path) -> None:
    assert sorted(json.loads((shared_traces / "expected.json").read_text())) == sorted(NAMES)


def test_the_format_of_2021_has_annotations_memory_and_links(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    names = [trace.name(code) for code in trace.annotations.name]
    assert sum(name.startswith("enumerate(DataLoader)#") for name in names) == 6
    assert sum(name.startswith("Optimizer.step#") for name in names) == 6
    assert not any("#" in trace.name(code) for code in np.unique(trace.operators.name))
    assert len(trace.memory.at) == 12838
    assert set(trace.kernels.correlation.tolist()) <= set(trace.runtime.correlation.tolist())
    assert (trace.kernels.external >= 0).mean() > 0.99
    assert (trace.kernels.grid > 0).all() and (trace.kernels.block > 0).all()
    assert set(trace.kernels.device.tolist()) == {0} and set(trace.kernels.stream.tolist()) == {7}
    assert trace.flows == {"async": 18192}
    # pid and tid come as 25738 and as "25738" in this file; both are one thread.
    assert len({(lane.pid, lane.tid) for lane in trace.lanes}) == len(trace.lanes)


def test_graph_replays_have_no_launch_but_are_there(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "mi300x-vllm-decode-graphs.json.gz")
    launched = set(trace.operators.external.tolist())
    assert len(trace.kernels) == 425
    assert sum(external not in launched for external in trace.kernels.external.tolist()) > 300
    assert set(trace.kernels.device.tolist()) == {2}


def test_shapes_are_one_text_however_they_were_laid_out(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "b200-eager-inference.json.gz")  # pretty-printed, a number per line
    shapes = {trace.name(code) for code in trace.operators.shapes}
    assert "[[512],[],[],[],[]]" in shapes
    assert not any("\n" in text for text in shapes)


def test_ranks_and_devices_are_kept_as_written(shared_traces: Path) -> None:
    for rank in (0, 1):
        trace = read_trace(shared_traces / "two-ranks" / f"sampled_rank-{rank}.json.gz")
        assert trace.distributed["rank"] == rank
        assert set(trace.kernels.device.tolist()) == {rank}
    trace = read_trace(shared_traces / "mi300x-qwen-inference.json.gz")
    assert trace.devices[0]["numSms"] == 304


def test_tables_are_sorted_by_start(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "a100-ddp-training.json.gz")
    for table in (trace.operators, trace.kernels, trace.copies, trace.runtime, trace.annotations, trace.steps):
        assert (np.diff(table.start) >= 0).all()
        assert (table.end >= table.start).all()
