"""Device memory that is taken from the driver and given back in every step: the host waits, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Change, Evidence


def _freeing(build: Any, call: str, freed_us: float = 800) -> Any:
    """Two steps of ten kernels of 90 µs, after each of which the host gives memory back."""
    for step in range(2):
        base = 10_000.0 * step
        build.step(step + 1, base, base + 10_000)
        for i in range(10):
            at = base + 1000 * i
            build.operator("aten::conv2d", at, at + 100 + freed_us)
            build.kernel(at + 10, at + 100, launched=at + 5)
            build.runtime(call, at + 50, at + 50 + freed_us)
    return build


@pytest.mark.parametrize("call", ["hipFree", "cudaFree", "cuMemFree_v2"])
def test_the_verdict_names_the_call_in_which_the_host_waits(call: str, builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_freeing(builder(), call).read(tmp_path))
    assert evidence.bound == "sync"
    assert evidence.verdict.endswith(f"because the host waits for it in {call}")


def test_a_compiler_does_not_shorten_the_driver_s_calls(builder: Any, tmp_path: Path) -> None:
    evidence = Evidence.from_trace(_freeing(builder(), "hipFree").read(tmp_path))
    faster = evidence.what_if(Change(launch_scale=0.5))
    # Of 1000 µs per kernel the host has 150 µs for itself; half of that can go.
    assert faster.likely > 0.9 * faster.before
    assert evidence.what_if(Change()).likely == pytest.approx(0.01, rel=0.02)


def test_a_synchronization_waits_for_the_last_work_launched_before_it(builder: Any, tmp_path: Path) -> None:
    # Another thread launches work that ends inside the same call: with faster kernels the first ends sooner, so does
    # the call, whatever the other thread's kernels do.
    build = builder()
    for step in range(2):
        base = 10_000.0 * step
        build.step(step + 1, base, base + 10_000)
        build.kernel(base + 10, base + 9000, "slow", launched=base + 5)
        build.runtime("cudaStreamSynchronize", base + 20, base + 9010)
        for i in range(20):
            at = base + 100 + 100 * i
            build.kernel(at, at + 50, "other", launched=at - 5, stream=9, thread=300)
    evidence = Evidence.from_trace(build.read(tmp_path))
    faster = evidence.what_if(Change(kernel_scale={"slow": 0.5}))
    assert faster.likely == pytest.approx(0.0055, rel=0.1)


def test_the_verdict_names_a_copy_that_waits_for_work_that_does_not_start(builder: Any, tmp_path: Path) -> None:
    # All is queued at 20 µs, the device starts at 8000, and the host sits in a pageable copy until then.
    build = builder()
    build.step(1, 0, 10_000)
    build.kernel(30, 100, launched=5)
    build.kernel(8000, 9000, launched=12)
    build.copy(9000, 9010, "Memcpy DtoH (Device -> Pageable)", launched=20, call=8990)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.bound == "unknown"
    assert "the host waits in cudaMemcpyAsync for work that is queued and does not start" in evidence.verdict
