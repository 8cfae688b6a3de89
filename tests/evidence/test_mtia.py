"""Devices that are neither NVIDIA's nor AMD's: MTIA's firmware events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence


def _mtia(build: Any) -> Any:
    build.step(1, 0, 1000)
    build.operator("aten::mm", 0, 900)
    build.events.append({"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "MTIA 9"}})
    for name, start, end in (("dma_request", 100, 200), ("fc-dtype_Float", 200, 700)):
        build.events.append(
            {"ph": "X", "cat": "mtia_ccp_events", "name": name, "pid": 9, "tid": 4, "ts": start, "dur": end - start}
        )
    return build


def test_requests_to_the_dma_engine_are_copies(builder: Any, tmp_path: Path) -> None:
    trace = _mtia(builder()).read(tmp_path)
    assert [trace.name(code) for code in trace.kernels.name] == ["fc-dtype_Float"]
    assert [trace.name(code) for code in trace.copies.name] == ["dma_request"]
    shares = Evidence.from_trace(trace).shares
    assert shares["kernel"] == pytest.approx(0.5) and shares["exposed_copy"] == pytest.approx(0.1)


def test_the_figures_count_what_is_a_kernel_by_category(builder: Any, tmp_path: Path) -> None:
    figures = Evidence.from_trace(_mtia(builder()).read(tmp_path)).figures
    assert (figures["kernels"], figures["copies"], figures["steps"]) == (0, 0, 1)
    assert "gpu_busy_share" not in figures and "h2d_ms" not in figures
