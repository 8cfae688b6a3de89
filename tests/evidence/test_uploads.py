"""Copies from pageable memory: the call first waits for what its stream has still to do, then stages the copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.evidence import Change, Evidence
from advisor.evidence.gpu.copies import waiting_uploads
from advisor.evidence.gpu.replay import LAUNCH
from advisor.trace import read_trace

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
STEP = 108_000


def _training(build: Any) -> Any:
    """Steps of 108 ms: the batch's copy takes 3 ms once the GPU gets to it, the host 30 ms to launch 105 ms of kernels.

    So the copy's call lasts 78 ms, 75 of them until the kernels of the step before are done.
    """
    for step in range(-1, 4):
        base = STEP * step
        if step >= 0:
            build.step(step + 1, base, base + STEP)
            build.copy(base + 75_000, base + 78_000, PAGEABLE, launched=base, call=77_950, size=20_000_000)
            build.runtime("cudaStreamSynchronize", base + 77_955, base + 78_005)
        for index in range(30):
            at = base + 78_010 + 3_499 * index
            build.kernel(at, at + 3_499, launched=base + 78_005 + 999 * index)
    return build


@pytest.fixture
def training(builder: Any, tmp_path: Path) -> Evidence:
    return Evidence.from_trace(_training(builder()).read(tmp_path))


def test_the_wait_in_a_pageable_copy_is_no_time_of_the_host_s(training: Evidence) -> None:
    script = training.step_model.script
    assert script is not None and script.host_ns == pytest.approx(30e6, rel=0.02)
    assert training.what_if(Change()).likely == pytest.approx(0.108, rel=0.01)
    faster = training.step_model.estimate(Change(kernel_scale={row.name: 0.35 for row in training.kernels}))
    assert faster.likely == pytest.approx(0.35 * 0.105 + 0.003, rel=0.02)


def test_a_compiler_does_not_shorten_a_copy_s_call(training: Evidence) -> None:
    assert training.what_if(Change(launch_scale=0.3)).likely == pytest.approx(0.108, rel=0.01)
    fast = Change(kernel_scale={row.name: 0.1 for row in training.kernels}, launch_scale=0.5)
    assert training.step_model.estimate(fast).likely == pytest.approx(0.015 + 0.003 + 0.00035, rel=0.05)


def test_fewer_bytes_take_less_of_a_copy_s_call(training: Evidence) -> None:
    narrow = training.step_model.estimate(Change(h2d_scale=0.25))
    assert narrow.before - narrow.likely == pytest.approx(0.75 * 0.003, rel=0.05)


def test_only_the_copies_asked_for_stop_blocking(training: Evidence) -> None:
    fast = {row.name: 0.2 for row in training.kernels}  # bound by the host, which the copy holds up
    copies = np.flatnonzero(training.trace.copies.pageable)
    change = Change(kernel_scale=fast, copies_async=copies)
    assert training.what_if(change).likely == training.what_if(Change(kernel_scale=fast, copies_async=True)).likely
    held_up = training.what_if(Change(kernel_scale=fast)).likely
    assert training.what_if(change).likely < 0.95 * held_up
    assert training.what_if(Change(kernel_scale=fast, copies_async=copies[:0])).likely == pytest.approx(held_up)
    factors = np.where(training.trace.copies.pageable, 0.25, 1.0)
    assert training.what_if(Change(h2d_scale=factors)) == training.what_if(Change(h2d_scale=0.25))


@pytest.mark.parametrize(
    ("name", "size", "called", "waits"),
    [
        pytest.param(PAGEABLE, 256, (100, 120), False, id="small"),
        pytest.param(PINNED, 1 << 24, (100, 120), False, id="pinned"),
        pytest.param(PINNED, 1 << 24, (100, 6_000), False, id="pinned-in-a-long-call"),
        pytest.param(PAGEABLE, 1 << 24, (100, 120), False, id="that-returns-at-once"),
        pytest.param(PAGEABLE, 256, (4_995, 5_010), False, id="small-when-the-stream-just-ends"),
        pytest.param(PAGEABLE, 1 << 24, (100, 5_900), True, id="large"),
        pytest.param(PAGEABLE, 1 << 17, (100, 5_002), True, id="staged-as-a-whole"),
        pytest.param(PAGEABLE, 1 << 24, (5_002, 5_900), True, id="large-with-nothing-before"),
        pytest.param(PAGEABLE, 0, (100, 5_900), True, id="of-unknown-size-that-visibly-waits"),
        pytest.param(PAGEABLE, 0, (5_002, 5_900), False, id="of-unknown-size-with-nothing-before"),
    ],
)
def test_the_trace_shows_which_calls_wait(
    name: str, size: int, called: tuple[int, int], waits: bool, builder: Any, tmp_path: Path
) -> None:
    build = builder()
    build.step(1, 0, 10_000)
    build.kernel(20, 5_000, launched=10)
    build.kernel(30, 9_000, launched=12, stream=20)  # of another stream: nothing that the copy is behind
    build.copy(5_005, 5_920, name, launched=called[0], call=called[1] - called[0], size=size)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert waiting_uploads(evidence.device).tolist() == [waits]
    script = evidence.step_model.script
    assert script is not None
    assert (script.kind[-1] != LAUNCH) is waits


def test_what_runs_after_such_a_wait_is_idle_because_of_it(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 10_000)
    build.kernel(20, 5_000, launched=10)
    build.copy(5_005, 6_000, PAGEABLE, launched=100, call=5_850, size=1 << 22)
    build.operator("aten::mm", 8_950, 9_010)
    build.kernel(9_000, 10_000, launched=8_990)
    shares = Evidence.from_trace(build.read(tmp_path)).breakdown.shares
    assert shares["idle_sync"] == pytest.approx(0.3, abs=0.01)
    assert shares["idle_python"] < 0.01


def test_a_copy_that_waits_for_nothing_takes_no_lead_from_the_host(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 10_000)
    build.copy(5_005, 6_000, PAGEABLE, launched=5_000, call=950, size=1 << 22)
    build.operator("aten::mm", 8_950, 9_010)
    build.kernel(9_000, 10_000, launched=8_990)
    assert Evidence.from_trace(build.read(tmp_path)).breakdown.shares["idle_sync"] == 0.0


def test_how_long_the_host_is_blocked_and_what_for(training: Evidence) -> None:
    (row,) = training.copies.of("HtoD")
    assert row.blocking_s == pytest.approx(0.078, rel=0.01)
    assert row.waiting_s == pytest.approx(0.075, rel=0.01)


@pytest.mark.parametrize("workers", [0, 4])
def test_images_wait_and_labels_do_not_in_a_public_trace(workers: int, shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / f"v100-resnet50-workers{workers}.pt.trace.json.gz"))
    found = waiting_uploads(evidence.device)
    assert set(evidence.trace.copies.bytes[found].tolist()) == {19_267_584} and found.sum() == 6
    (row,) = evidence.copies.of("HtoD")
    assert row.waiting_s < 1e-5  # the GPU has nothing to do when a batch comes
