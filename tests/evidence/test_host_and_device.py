"""Copies, synchronizations, loaders, kernels and operators of a step."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Change, Evidence
from advisor.evidence.absent import empty_trace
from advisor.evidence.gpu.replay import script_of
from advisor.harness.layout import (
    CallSite,
    Device,
    Environment,
    Loader,
    Memory,
    Model,
    RunRecord,
    Site,
    Timing,
)
from advisor.report.details import details
from advisor.trace import read_trace

V100 = "v100-resnet50-workers0.pt.trace.json.gz"


def test_pageable_copies_block_the_host(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / V100))
    (copy,) = evidence.copies.of("HtoD")
    assert copy.pageable and copy.blocking
    assert copy.count == 2  # images and labels of each of 6 steps
    assert copy.bytes == pytest.approx(115607040 / 6)
    assert copy.total_s == pytest.approx(11.492e-3 / 6, rel=1e-3)
    assert copy.exposed_s == pytest.approx(copy.total_s, rel=0.01)
    assert copy.blocking_s > copy.total_s
    assert evidence.copies.h2d_exposed_s == copy.exposed_s


def test_pinned_copies_on_their_own_stream_neither_block_nor_show(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.kernel(10, 1000, launched=5)
    build.copy(100, 300, launched=50, stream=20, size=4096)
    (copy,) = Evidence.from_trace(build.read(tmp_path)).copies.of("HtoD")
    assert not copy.pageable and not copy.blocking
    assert (copy.bytes, copy.exposed_s, copy.blocking_s) == (4096, 0.0, 0.0)


def test_synchronizations_are_joined_to_the_lines_that_cause_them(builder: Any, tmp_path: Path) -> None:
    build = builder()
    for number in range(2):
        at = number * 1000
        build.step(number, at, at + 1000)
        build.kernel(at + 10, at + 800, launched=at + 5)
        build.operator("aten::item", at + 90, at + 810)
        build.operator("aten::_local_scalar_dense", at + 91, at + 809)
        build.runtime("cudaStreamSynchronize", at + 100, at + 805)
        build.runtime("cudaDeviceSynchronize", at + 900, at + 910)
    loss, setup = Site("train.py", 40), Site("train.py", 3)
    sites = [
        CallSite("Tensor.item", loss, calls=9, calls_per_step=1.0),
        CallSite("Tensor.item", setup, calls=1, calls_per_step=0.0),
        CallSite("synchronize", Site("train.py", 41), calls=9, calls_per_step=1.0),
    ]
    evidence = Evidence(build.read(tmp_path), RunRecord(call_sites=sites))
    item, explicit = evidence.syncs
    assert (item.cause, item.operator, item.count) == ("item", "aten::item", 1.0)
    assert item.total_s == pytest.approx(705e-6)
    assert item.wait_s == pytest.approx(700e-6)  # the device was done after 800
    assert [site.site for site in item.sites] == [loss]
    assert (explicit.cause, explicit.wait_s) == ("explicit", 0.0)
    assert explicit.sites[0].site == Site("train.py", 41)


def test_the_harness_own_wait_at_the_end_of_a_window_is_none_of_the_hosts(builder: Any, tmp_path: Path) -> None:
    """A host that runs ahead: 80 us to launch a step of 1 ms. Before the window ends the harness waits."""
    build = builder()
    bounds = (0, 80, 160, 3005)
    for number in range(3):
        at = bounds[number]
        build.step(number, at, bounds[number + 1])
        build.kernel(5 + 1000 * number, 1000 + 1000 * number, launched=at + 3)
        build.operator("aten::mm", at + 1, at + 75)
    build.annotation("Optimizer.step#SGD.step", 230, 3004)
    build.annotation("advisor.drain", 240, 3003)
    build.runtime("cudaDeviceSynchronize", 241, 3002)
    record = RunRecord(timing=Timing(step_s=1e-3, settled=True), profile_step_s=1e-3)
    evidence = Evidence(build.read(tmp_path), record)
    assert evidence.syncs == ()
    assert (evidence.shown_steps.end // 1000).tolist() == [1000, 2000, 3005]  # what a picture shows
    picture = details(evidence).picture
    assert picture is not None and picture.duration_ns == pytest.approx(1_000_000, rel=0.02)
    assert evidence.host.optimizer.total == 11_000  # torch calls the hook that waits inside of the step's range
    script = script_of(evidence.steps, evidence.device)
    assert script is not None and script.host_ns == pytest.approx(80_000, rel=0.1)
    assert evidence.what_if(Change(launch_scale=0.5)).speedup[1] == pytest.approx(1.0, abs=0.01)
    assert evidence.what_if(Change(kernel_scale={evidence.kernels[0].name: 0.5})).speedup[1] == pytest.approx(
        2, rel=0.02
    )


def test_loader_of_a_bare_trace(shared_traces: Path) -> None:
    (loader,) = Evidence.from_trace(read_trace(shared_traces / V100)).loaders
    assert loader.workers == 0
    assert loader.wait_share == pytest.approx(0.396, abs=0.001)
    assert loader.exposed_share == pytest.approx(0.336, abs=0.001)  # the device worked on for a while
    assert loader.fetch_s == loader.wait_s
    (loader,) = Evidence.from_trace(read_trace(shared_traces / V100.replace("workers0", "workers4"))).loaders
    assert (loader.workers, loader.fetch_s) == (None, None)
    assert loader.wait_share < 0.02


def test_loaders_of_a_run_come_from_its_timing_window() -> None:
    loaders = [
        Loader(num_workers=0, wait_s=None, trains=False),  # the evaluation's
        Loader(num_workers=2, wait_s=0.001, fetch_s=0.05, trains=True),
        Loader(num_workers=0, wait_s=0.03, fetch_s=0.029, trains=True, site=Site("train.py", 9)),
    ]
    evidence = Evidence(empty_trace(), RunRecord(timing=Timing(step_s=0.1, settled=True), loaders=loaders))
    first, second = evidence.loaders
    assert (first.index, first.wait_share, first.site) == (2, pytest.approx(0.3), Site("train.py", 9))
    assert (second.index, second.workers, second.fetch_s) == (1, 2, 0.05)
    assert evidence.data_wait_share == pytest.approx(0.31)
    assert evidence.bound == "input"
    assert evidence.verdict.startswith("input-bound: 31% of the step waits for data")


def test_kernels_name_the_operator_that_launched_them(shared_traces: Path) -> None:
    # The rows go by the thread and time of the launch call; the file's own external ids must say the same.
    events = json.loads(gzip.decompress((shared_traces / V100).read_bytes()))["traceEvents"]
    operators = [event for event in events if event.get("cat") == "Operator"]
    names = {event["args"]["External id"]: event["name"] for event in operators if "External id" in event["args"]}
    said: dict[str, Counter[str]] = {}
    for event in events:
        if event.get("cat") == "Kernel":
            said.setdefault(event["name"], Counter())[names.get(event["args"]["external id"], "")] += 1
    evidence = Evidence.from_trace(read_trace(shared_traces / V100))
    for row in evidence.kernels:
        assert said[row.name][row.operator] == max(said[row.name].values()), row.name
    assert sum(row.share for row in evidence.kernels) == pytest.approx(1.0)
    assert sum(row.total_s for row in evidence.kernels) == pytest.approx(evidence.matrix.kernel_s)
    totals = [row.total_s for row in evidence.kernels]
    assert totals == sorted(totals, reverse=True)


def test_kernels_without_a_launch_are_kept(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "mi300x-vllm-decode-graphs.json.gz"))
    assert sum(row.count for row in evidence.kernels) == 425
    assert {row.operator for row in evidence.kernels if row.name.startswith("_matmul_ogs")} == {""}


def test_self_time_leaves_out_what_is_inside(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.operator("aten::linear", 100, 400)
    build.operator("aten::addmm", 150, 350)
    build.operator("aten::addmm", 500, 600)
    build.operator("aten::addmm", 120, 220, thread=101)  # at the same time on another thread
    rows = {row.name: row for row in Evidence.from_trace(build.read(tmp_path)).operators}
    assert rows["aten::linear"].self_s == pytest.approx(100e-6)
    assert rows["aten::addmm"].self_s == pytest.approx(400e-6)
    assert rows["aten::addmm"].count == 3


def test_detail_window_gives_shapes_and_what_does_not_match_is_counted(builder: Any, tmp_path: Path) -> None:
    plain = builder()
    for number in range(2):
        plain.step(number, number * 1000, number * 1000 + 1000)
        for at in (100, 200, 300, 400):
            plain.operator("aten::mm", number * 1000 + at, number * 1000 + at + 50)
    detailed = builder()
    detailed.step(5, 0, 1000)
    for at in (100, 200, 300):
        detailed.operator("aten::mm", at, at + 90, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]})
    folders = [tmp_path / name for name in ("plain", "detailed")]
    for folder in folders:
        folder.mkdir()
    evidence = Evidence(plain.read(folders[0]), detail=detailed.read(folders[1]))
    row = evidence.operators.row("aten::mm")
    assert row is not None
    assert (row.count, row.self_s) == (4.0, pytest.approx(200e-6))  # durations never come from the detail window
    assert row.shapes == ("[[2,3],[3,4]]",)
    assert evidence.operators.unmatched == pytest.approx(0.25)
    assert evidence.flops.per_step == 3 * 2 * 2 * 3 * 4


def test_breakdown_of_a_cpu_step(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.load(0, 200)
    build.operator("aten::stack", 50, 190)  # the loader's own
    build.annotation("advisor.forward", 200, 500)
    build.operator("aten::addmm", 210, 490, **{"Sequence number": 1})
    build.operator("aten::nll_loss", 510, 560, **{"Sequence number": 2})
    build.operator("autograd::engine::evaluate_function: AddmmBackward0", 600, 800)
    build.annotation("Optimizer.step#Adam.step", 850, 950)
    shares = Evidence.from_trace(build.read(tmp_path)).breakdown.shares
    assert shares == pytest.approx(
        {"loader": 0.2, "forward": 0.35, "backward": 0.2, "optimizer": 0.1, "other": 0.15}, abs=1e-9
    )


def test_closure_of_an_optimizer_gives_way_to_what_runs_inside(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.step(2, 1000, 1500)
    build.annotation("Optimizer.step#LBFGS.step", 100, 1100)  # ends after the boundary: its hook made it
    build.annotation("advisor.forward", 200, 500)
    build.annotation("advisor.backward", 500, 900)
    breakdown = Evidence.from_trace(build.read(tmp_path)).breakdown
    assert breakdown.step_shares(0) == pytest.approx(
        {"loader": 0, "forward": 0.3, "backward": 0.4, "optimizer": 0.2, "other": 0.1}, abs=1e-9
    )
    assert breakdown.step_shares(1)["optimizer"] == pytest.approx(0.2)


def test_memory_against_capacity(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / V100)
    record = RunRecord(
        memory=Memory(peak_allocated=8 << 30, peak_reserved=10 << 30, capacity=32 << 30),
        device=Device(type="cuda", name="Tesla V100"),
    )
    memory = Evidence(trace, record).memory
    assert (memory.share, memory.on_device) == (0.25, True)
    on_cpu = RunRecord(memory=Memory(rss_peak=2 << 30, host_available=6 << 30))
    assert Evidence(empty_trace(), on_cpu).memory.share == 0.25
    assert Evidence.from_trace(trace).memory.capacity == 34084028416


def test_model_on_a_gpu_without_kernels_in_the_trace_is_still_a_gpu_run() -> None:
    record = RunRecord(models=[Model(devices=["cuda:0"])], device=Device(type="cuda", name="NVIDIA A100-SXM4-40GB"))
    evidence = Evidence(empty_trace(), record)
    assert evidence.device_is_gpu
    assert evidence.peak is not None and evidence.peak.name == "A100"
    cpu = Evidence(empty_trace(), RunRecord(models=[Model(devices=["cpu"])], environment=Environment(cpu="EPYC")))
    assert (cpu.device_is_gpu, cpu.device_name, cpu.peak) == (False, "EPYC", None)


def test_time_that_is_not_steps() -> None:
    record = RunRecord(steps_wall_s=20.0, aside={"evaluation": 3.0, "checkpoint": 2.0})
    assert Evidence(empty_trace(), record).aside.share == 0.25
    assert Evidence(empty_trace(), record).figures["aside_share"] == 0.25
    assert Evidence(empty_trace()).aside.share == 0.0


@pytest.mark.parametrize(
    ("file", "capability", "amd", "name"),
    [
        ("h100-vit-inference", (9, 0), False, "NVIDIA H100 80GB HBM3"),
        ("mi300x-qwen-inference", None, True, "AMD Instinct MI300X VF"),  # 9.4 there is no CUDA capability
        ("mi300x-vllm-decode-graphs", None, True, "AMD Instinct MI300X"),  # the file has no name
        ("no-gpu-rank", None, False, "CPU"),
    ],
)
def test_device_of_a_bare_trace(
    file: str, capability: tuple[int, int] | None, amd: bool, name: str, shared_traces: Path
) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / f"{file}.json.gz"))
    assert (evidence.capability, evidence.amd, evidence.device_name) == (capability, amd, name)


def test_compiled_models_and_replayed_graphs_are_recognized(shared_traces: Path) -> None:
    compiled = {
        file: Evidence.from_trace(read_trace(shared_traces / f"{file}.json.gz")).compiled
        for file in ("mi300x-compiled-triton", "mi300x-vllm-decode-graphs", "a100-triton", "h100-vit-inference")
    }
    assert list(compiled.values()) == [True, True, True, False]
    # One compiled helper among hundreds of eager kernels.
    assert not Evidence.from_trace(read_trace(shared_traces / "b200-eager-inference.json.gz")).compiled


def test_kernels_without_any_operator_have_no_launcher(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.kernel(10, 20, launched=5)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert [row.operator for row in evidence.kernels] == [""]
    assert evidence.nesting.parent.tolist() == [] and evidence.syncs == ()


def test_host_that_waits_for_work_which_does_not_start_is_said(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "mi300x-sglang-decode.json.gz"))
    assert evidence.verdict.endswith("the host waits in hipMemcpyWithStream for work that is queued and does not start")


@pytest.mark.parametrize(
    ("optimizer", "closed", "share"),
    [("AdamW", 0, 0.1), ("AdamW", 950, 0.05), ("AdamW", 800, 0.1), ("LBFGS", 0, 0.9 - 0.5), ("LBFGS", 950, 0.9 - 0.5)],
)
def test_what_an_optimizers_closure_does_is_no_step_of_its_own(
    builder: Any, tmp_path: Path, optimizer: str, closed: int, share: float
) -> None:
    build = builder()
    for number in range(3):
        at = number * 1000
        build.step(number, at, at + 1000)
        build.annotation(f"Optimizer.step#{optimizer}.step", at + 100, at + 1000)
        build.annotation("advisor.backward", at + 400, at + 900)  # the closure: Python's 300 us, and this
        if closed:
            build.annotation("advisor.closure", at + 110, at + closed)
        build.operator("aten::addcdiv_", at + 910, at + 990)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.breakdown.share("optimizer") == pytest.approx(share)
