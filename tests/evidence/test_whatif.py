"""What the step would be if: hidden work saves nothing, cores are finite, and nothing changes when nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.evidence import Change, Estimate, Evidence
from advisor.evidence.absent import empty_trace
from advisor.evidence.gpu.replay import replay, script_of
from advisor.evidence.loading.pipeline import period, undisturbed_s
from advisor.harness.layout import Environment, Loader, RunRecord, Timing
from advisor.trace import read_trace


def cpu_run(
    *,
    step_s: float,
    fetch_s: float,
    fetch_cpu_s: float,
    cores: float,
    cpu_s: float | None = None,
    batches: int | None = None,
    per_step: int = 1,
    **loader: Any,
) -> Evidence:
    """A CPU run whose loader works in line: a step is its fetch and the rest.

    With several batches `per_step` (accumulated gradients), ``fetch_s`` and ``fetch_cpu_s`` are those of all of them.
    """
    rest = step_s - fetch_s
    record = RunRecord(
        environment=Environment(usable_cpus=cores),
        timing=Timing(
            step_s=step_s,
            cpu_s=rest * cores + fetch_cpu_s if cpu_s is None else cpu_s,
            samples_per_step=8.0 * per_step,
            settled=True,
        ),
        loaders=[
            Loader(
                num_workers=0,
                trains=True,
                batch_size=8,
                wait_s=fetch_s,
                fetch_s=fetch_s / per_step,
                fetch_cpu_s=fetch_cpu_s / per_step,
                batches=batches,
                context="fork",
                **loader,
            )
        ],
    )
    return Evidence(empty_trace(), record)


def test_threads_that_spin_beside_a_fetch_do_not_keep_workers_from_helping() -> None:
    """An H200's 16 cores, spectrograms made in line: 3.28 s of CPU time in 0.225 s, on one thread 0.14 s."""
    measured: dict[str, Any] = {"step_s": 0.2495, "fetch_s": 0.225, "fetch_cpu_s": 3.284, "cores": 16, "cpu_s": 3.5}
    spinning = cpu_run(**measured)
    assert spinning.what_if(Change(workers=8)).likely > 0.2
    single = cpu_run(**measured, single_s=0.14, single_cpu_s=0.14)
    assert single.step_model.main_threads == spinning.step_model.main_threads
    assert single.what_if(Change(workers=8)).likely == pytest.approx(0.0255, rel=0.1)
    one = single.what_if(Change(workers=1))
    assert one.likely == pytest.approx(0.14 * 1.1, rel=0.05) and one.low < one.likely


REPLAYED = {
    "a100-ddp-training.json.gz": 0.01,
    "b200-eager-inference.json.gz": 0.01,
    "h100-bert-small-inference.json.gz": 0.01,
    "h100-vit-inference.json.gz": 0.01,
    "mi300x-compiled-triton.json.gz": 0.01,
    "mi300x-sglang-decode.json.gz": 0.01,
    "two-ranks/sampled_rank-0.json.gz": 0.01,
    "v100-resnet50-workers0.pt.trace.json.gz": 0.01,
    "v100-resnet50-workers4.pt.trace.json.gz": 0.01,
    "mi300x-qwen-inference.json.gz": 0.10,  # one step, whose kernels still run after its end
}


@pytest.mark.parametrize("file", REPLAYED)
def test_replay_without_a_change_is_the_traced_step(file: str, shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / file))
    script = evidence.step_model.script
    assert script is not None
    seconds = replay(script, evidence.step_model._as_traced) / 1e9
    assert seconds == pytest.approx(evidence.trace_step_s, rel=REPLAYED[file])
    estimate = evidence.what_if(Change())
    assert estimate.likely == pytest.approx(estimate.before)


def test_workers_of_a_public_pair_of_traces(shared_traces: Path) -> None:
    # The same training with 0 and with 4 workers, both measured: the prediction from the first holds for the second.
    without = Evidence.from_trace(read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz"))
    with_four = Evidence.from_trace(read_trace(shared_traces / "v100-resnet50-workers4.pt.trace.json.gz"))
    estimate = without.what_if(Change(workers=4))
    assert with_four.step_s is not None
    assert estimate.low <= with_four.step_s <= estimate.high
    assert estimate.likely == pytest.approx(with_four.step_s, rel=0.15)


def test_faster_kernels_save_nothing_in_a_launch_bound_step(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "h100-vit-inference.json.gz"))
    faster = evidence.what_if(Change(kernel_scale={row.name: 0.3 for row in evidence.kernels}))
    assert faster.likely == pytest.approx(faster.before, rel=0.01)
    assert faster.limits == ("host",)
    quicker_host = evidence.what_if(Change(launch_scale=0.5))
    assert quicker_host.speedup[1] > 1.7


def test_faster_kernels_save_their_time_in_a_device_bound_step(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "mi300x-compiled-triton.json.gz"))
    assert evidence.what_if(Change(kernel_scale={row.name: 0.5 for row in evidence.kernels})).speedup[1] > 1.9
    assert evidence.what_if(Change(launch_scale=0.1)).speedup[1] < 1.02


def test_hidden_copy_saves_nothing_and_an_exposed_one_does(builder: Any, tmp_path: Path) -> None:
    def evidence(blocking: bool) -> Evidence:
        build = builder()
        for number in range(3):
            at = number * 1000
            build.step(number, at, at + 1000)
            if blocking:
                name = "Memcpy HtoD (Pageable -> Device)"
                build.copy(at + 10, at + 400, name, launched=at + 5, call=395)
                build.runtime("cudaStreamSynchronize", at + 401, at + 405)
                build.kernel(at + 420, at + 1000, launched=at + 410)
            else:
                build.copy(at + 10, at + 400, launched=at + 5, stream=20)
                build.kernel(at + 10, at + 1000, launched=at + 1)
        folder = tmp_path / str(blocking)
        folder.mkdir()
        return Evidence.from_trace(build.read(folder))

    hidden = evidence(blocking=False).what_if(Change(h2d_scale=0.1, copies_async=True))
    assert hidden.speedup[1] == pytest.approx(1.0, abs=0.01)
    exposed = evidence(blocking=True).what_if(Change(h2d_scale=0.25, copies_async=True))
    assert exposed.speedup[1] == pytest.approx(1000 / (1000 - 0.75 * 390), rel=0.05)


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "hipMemcpyWithStream"])
def test_copy_that_waits_in_its_own_call_stops_waiting(call: str, builder: Any, tmp_path: Path) -> None:
    build = builder()
    for number in range(3):
        start = 1000 * number
        build.step(number, start, start + 1000)
        build.copy(start + 20, start + 400, "Memcpy HtoD (Pageable -> Device)", launched=start + 10, call=395)
        build.operator("aten::mm", start + 500, start + 900)  # 100 us of the host's own, then a kernel
        build.kernel(start + 910, start + 990, launched=start + 905)
    for event in build.events:
        event["name"] = call if event["name"] == "cudaMemcpyAsync" else event["name"]
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert evidence.what_if(Change(copies_async=True)).speedup[1] > 1.3


def test_removed_synchronization_lets_the_host_run_ahead(builder: Any, tmp_path: Path) -> None:
    # 600 µs of device work; the host waits for it and prepares the next step for 400 µs: without the wait they overlap.
    build = builder()
    for number in range(4):
        at = number * 1000
        build.step(number, at, at + 1000)
        build.kernel(at + 400, at + 1000, launched=at + 390)
        build.operator("aten::item", at + 396, at + 1000)
        build.runtime("cudaStreamSynchronize", at + 397, at + 1000)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert [row.cause for row in evidence.syncs] == ["item"]
    assert evidence.what_if(Change(remove_syncs=True)).likely * 1e6 == pytest.approx(600, rel=0.05)
    assert evidence.what_if(Change(remove_syncs=[0])).limits == ("device",)
    assert evidence.what_if(Change(remove_syncs=[])).speedup[1] == pytest.approx(1.0)


def test_sleeping_fetch_parallelizes_even_on_one_core() -> None:
    # Measured on a fetch that sleeps 124 ms beside 2 ms of computing: 126, 125, 63, 32 ms with 0, 1, 2, 4 workers.
    evidence = cpu_run(step_s=0.1263, fetch_s=0.1244, fetch_cpu_s=0.0012, cores=2, cpu_s=0.003)
    for workers, measured in ((1, 0.1252), (2, 0.0630), (4, 0.0316)):
        estimate = evidence.what_if(Change(workers=workers))
        assert estimate.likely == pytest.approx(measured, rel=0.05)
        assert estimate.low <= measured <= estimate.high
        assert estimate.limits == ("loader",)


def test_computing_fetch_makes_two_busy_cores_slower() -> None:
    evidence = cpu_run(step_s=0.080, fetch_s=0.030, fetch_cpu_s=0.030, cores=2)
    for workers in (1, 2, 4):
        low, likely, _ = evidence.what_if(Change(workers=workers)).speedup
        assert low < likely < 1.0, workers
        assert evidence.what_if(Change(workers=workers)).limits == ("CPU cores",)


def test_workers_share_the_cores_while_the_step_waits_for_them() -> None:
    # 20 ms of computing per batch before a step of 4 ms on both cores: one worker would be worse than none.
    evidence = cpu_run(step_s=0.024, fetch_s=0.020, fetch_cpu_s=0.020, cores=2)
    assert evidence.what_if(Change(workers=1)).speedup[1] < 1.0
    assert evidence.what_if(Change(workers=2)).speedup[1] < 1.0
    # Where there is much more to fetch, the step stands still for long, and they have both cores.
    evidence = cpu_run(step_s=0.204, fetch_s=0.200, fetch_cpu_s=0.200, cores=2)
    assert 1.35 < evidence.what_if(Change(workers=2)).speedup[1] < 204 / 110


@pytest.mark.parametrize(
    ("step_s", "fetch_s", "measured_s"), [(0.0335, 0.0302, 0.0335), (0.037, 0.034, 0.034), (0.060, 0.053, 0.050)]
)
def test_two_computing_workers_beside_a_small_step_as_measured(
    step_s: float, fetch_s: float, measured_s: float
) -> None:
    """Of accuracy's cases, on two cores: seismic_windows_argparse, log_stream_iterable, satellite_tiles_package."""
    evidence = cpu_run(step_s=step_s, fetch_s=fetch_s, fetch_cpu_s=fetch_s, cores=2)
    assert evidence.what_if(Change(workers=2)).likely == pytest.approx(measured_s, rel=0.2)


def test_workers_with_cores_of_their_own_slow_nothing_down() -> None:
    assert undisturbed_s(0.3, workers=4, worker_cpu_s=1.0, threads=4, cores=8) == 0.3
    ample = period(0.1, workers=2, fetch_s=0.4, fetch_cpu_s=0.4, main_threads=4, cores=8)
    assert ample.likely == pytest.approx(0.22) and ample.limit == "loader"


@pytest.mark.parametrize("alone_s", [0.003, 0.02, 0.1])
def test_slowing_down_and_its_inverse_agree(alone_s: float) -> None:
    slow = alone_s + min(0.048, 5 * alone_s)
    found = undisturbed_s(slow, workers=1, worker_cpu_s=0.048, threads=2, cores=2)
    assert found == pytest.approx(alone_s, rel=1e-6)


@pytest.mark.parametrize(
    ("step_s", "wait_s", "fetch_s", "cheaper_s", "measured_s"),
    [(0.050, 0.025, 0.048, 0.003, 0.0085), (0.118, 0.050, 0.119, 0.028, 0.038)],
)
def test_cheaper_fetches_give_the_step_its_cores_back(
    step_s: float, wait_s: float, fetch_s: float, cheaper_s: float, measured_s: float
) -> None:
    """A worker that computes all the time slows the step down: session_recommender_click, leaf_photos_torchvision."""
    loader = Loader(num_workers=1, trains=True, wait_s=wait_s, fetch_s=fetch_s, fetch_cpu_s=fetch_s)
    record = RunRecord(
        environment=Environment(usable_cpus=2, intraop_threads=2),
        timing=Timing(step_s=step_s, cpu_s=0.7 * step_s, settled=True),
        loaders=[loader],
    )
    evidence = Evidence(empty_trace(), record)
    assert evidence.what_if(Change(fetch_s=cheaper_s, fetch_cpu_s=cheaper_s)).likely == pytest.approx(
        measured_s, rel=0.3
    )


def test_less_to_fetch_never_makes_a_step_longer_that_waits_for_a_worker() -> None:
    """The seconds of a worker whose own threads share the cores with the step are not counted twice."""
    loader = Loader(num_workers=1, trains=True, wait_s=0.162, fetch_s=0.264, fetch_cpu_s=0.413)
    record = RunRecord(
        environment=Environment(usable_cpus=2, intraop_threads=2),
        timing=Timing(step_s=0.262, cpu_s=0.15, settled=True),
        loaders=[loader],
    )
    evidence = Evidence(empty_trace(), record)
    steps = [
        evidence.what_if(Change(fetch_s=0.264 * left, fetch_cpu_s=0.413 * left)).likely for left in (1.0, 0.8, 0.5, 0.2)
    ]
    assert steps[0] == pytest.approx(0.262)
    assert steps == sorted(steps, reverse=True) and steps[2] < 0.2


def test_no_schedule_beats_the_cores_for_a_step_of_one_thread() -> None:
    # One thread on two cores: the second is free for the worker, a third worker's worth of computing is not.
    free = period(0.050, workers=1, fetch_s=0.030, fetch_cpu_s=0.030, main_threads=1, cores=2)
    assert free.likely == pytest.approx(0.0525, rel=0.01)
    full = period(0.050, workers=4, fetch_s=0.200, fetch_cpu_s=0.200, main_threads=1, cores=2)
    assert full.likely == pytest.approx((0.050 + 0.220) / 2)
    assert full.limit == "CPU cores"


def test_computing_fetch_helps_where_cores_are_free() -> None:
    evidence = cpu_run(step_s=0.080, fetch_s=0.030, fetch_cpu_s=0.030, cores=16, cpu_s=0.130)
    assert evidence.what_if(Change(workers=2)).speedup[1] == pytest.approx(80 / 52.5, rel=0.03)


def test_cheaper_fetch_saves_in_line_and_nothing_behind_workers() -> None:
    in_line = cpu_run(step_s=0.080, fetch_s=0.030, fetch_cpu_s=0.030, cores=16, cpu_s=0.130)
    assert in_line.what_if(Change(fetch_s=0.010)).likely == pytest.approx(0.060)
    both = in_line.what_if(Change(workers=4, fetch_s=0.010))
    assert both.likely == pytest.approx(in_line.what_if(Change(workers=4)).likely, rel=0.02)


def test_a_step_of_several_batches_waits_for_all_of_them() -> None:
    # Five batches of a critic for one of the generator, two cores: 102 ms without, 120 ms with one worker (0.85).
    busy: dict[str, Any] = {"step_s": 0.1022, "fetch_s": 0.0293, "fetch_cpu_s": 0.0587, "cores": 2, "cpu_s": 0.1918}
    estimate = cpu_run(**busy, per_step=5).what_if(Change(workers=1))
    assert estimate.low < 0.120 < estimate.high and estimate.speedup[1] < 1
    # Four of 25 ms that sleep, of which four workers make one each.
    accumulated = cpu_run(step_s=0.102, fetch_s=0.100, fetch_cpu_s=0.001, cores=2, cpu_s=0.003, per_step=4)
    assert accumulated.what_if(Change(workers=4)).likely == pytest.approx(0.025, rel=0.05)
    assert accumulated.what_if(Change(workers=1)).likely == pytest.approx(0.100, rel=0.05)
    assert accumulated.what_if(Change(fetch_s=0.005)).likely == pytest.approx(0.022, rel=0.05)
    # An epoch of 20 batches is five steps, each of which starts the workers for a fifth of it.
    short = cpu_run(step_s=0.102, fetch_s=0.100, fetch_cpu_s=0.0, cores=8, batches=20, per_step=4)
    started = short.what_if(Change(workers=4)).likely - short.what_if(Change(workers=4, persistent=True)).likely
    assert started == pytest.approx((4 * 0.03 + 0.025) / 5, rel=0.05)


def test_persistent_workers_save_the_start_of_every_epoch() -> None:
    record = RunRecord(
        environment=Environment(usable_cpus=8),
        timing=Timing(step_s=0.050, cpu_s=0.06, settled=True),
        loaders=[
            Loader(num_workers=2, trains=True, wait_s=0.001, fetch_s=0.05, fetch_cpu_s=0.01, start_s=1.0, batches=20)
        ],
    )
    estimate = Evidence(empty_trace(), record).what_if(Change(persistent=True))
    assert estimate.before == pytest.approx(0.100)  # a second per 20 steps
    assert estimate.likely == pytest.approx(0.050)


def test_short_epochs_without_persistent_workers_do_not_gain() -> None:
    short = cpu_run(step_s=0.030, fetch_s=0.010, fetch_cpu_s=0.0, cores=8, batches=5)
    assert short.what_if(Change(workers=4)).speedup[1] < 1.0
    assert short.what_if(Change(workers=4, persistent=True)).speedup[1] > 1.3


def test_operators_of_the_loader_are_not_the_steps(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 1000)
    build.load(0, 400)
    build.operator("aten::div", 100, 300)
    build.operator("aten::div", 500, 900)
    evidence = Evidence.from_trace(build.read(tmp_path))
    row = evidence.operators.row("aten::div")
    assert row is not None and (row.self_s, row.loading_s) == (pytest.approx(600e-6), pytest.approx(200e-6))
    assert evidence.what_if(Change(operator_scale={"aten::div": 0.0})).likely == pytest.approx(600e-6)


def test_larger_batch_amortizes_what_is_paid_per_step(shared_traces: Path) -> None:
    launch_bound = Evidence.from_trace(read_trace(shared_traces / "h100-vit-inference.json.gz"))
    assert launch_bound.what_if(Change(batch_scale=2)).speedup[1] == pytest.approx(2.0, rel=0.05)
    busy = Evidence.from_trace(read_trace(shared_traces / "mi300x-compiled-triton.json.gz"))
    assert busy.what_if(Change(batch_scale=2)).speedup[1] < 1.05
    # A quarter of it takes little more than a quarter of the time where kernels fill the device many times over.
    assert 0.7 < busy.what_if(Change(batch_scale=0.25)).speedup[1] <= 1.0


def test_device_work_without_launches_still_scales(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "mi300x-vllm-decode-graphs.json.gz"))
    estimate = evidence.what_if(Change(kernel_scale={row.name: 0.5 for row in evidence.kernels}))
    assert estimate.speedup[1] == pytest.approx(2.0, rel=0.03)


def test_host_time_is_calibrated_to_the_undisturbed_step(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100-vit-inference.json.gz")
    record = RunRecord(timing=Timing(step_s=0.004, settled=True), environment=Environment(usable_cpus=8))
    evidence = Evidence(trace, record)
    assert evidence.inflation == pytest.approx(7.894 / 4, rel=0.01)
    assert evidence.what_if(Change()).likely == pytest.approx(0.004)
    # 1 ms of the traced host time is half a millisecond in reality.
    without = evidence.what_if(Change(operator_scale={"aten::addmm": 0.0}))
    assert without.likely == pytest.approx(0.004 - 0.00095, rel=0.05)


def test_factors_by_row_must_fit(shared_traces: Path) -> None:
    import numpy as np

    evidence = Evidence.from_trace(read_trace(shared_traces / "a100-triton.json.gz"))
    assert evidence.what_if(Change(kernel_scale=np.array([0.5]))).likely > 0
    with pytest.raises(ValueError, match="2 factors for 1 rows"):
        evidence.what_if(Change(kernel_scale=np.array([0.5, 0.5])))


def test_nothing_launched_gives_no_script(builder: Any, tmp_path: Path) -> None:
    build = builder()
    build.step(1, 0, 100)
    build.operator("aten::mm", 10, 20)
    evidence = Evidence.from_trace(build.read(tmp_path))
    assert script_of(evidence.steps, evidence.device) is None


def test_without_any_step_there_is_nothing_to_estimate() -> None:
    estimate = Evidence(empty_trace(), RunRecord()).what_if(Change(workers=2))
    assert (estimate.before, estimate.likely) == (0.0, 0.0)
    assert estimate.speedup == (1.0, 1.0, 1.0)


SECONDS = st.floats(0.0, 2.0)


@settings(max_examples=200, deadline=None)
@given(
    rest=st.floats(1e-4, 2.0), fetch=SECONDS, computing=st.floats(0, 1), workers=st.integers(1, 16),
    threads=st.floats(1, 16), cores=st.floats(1, 16),
)  # fmt: skip
def test_cpu_seconds_never_exceed_the_cores(
    rest: float, fetch: float, computing: float, workers: int, threads: float, cores: float
) -> None:
    cpu = fetch * computing
    found = period(rest, workers=workers, fetch_s=fetch, fetch_cpu_s=cpu, main_threads=threads, cores=cores)
    assert found.low <= found.likely <= found.high
    for seconds in (found.low, found.likely, found.high):
        assert seconds * cores >= (min(threads, cores) * rest + cpu) * (1 - 1e-9)
        assert seconds >= rest and seconds >= fetch / workers * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    rest=st.floats(1e-4, 1.0), fetch=st.floats(1e-4, 1.0), computing=st.floats(0, 1), cores=st.floats(1, 16),
    workers=st.one_of(st.none(), st.integers(0, 16)), scale=st.sampled_from([1.0, 2.0, 8.0]),
    new_fetch=st.one_of(st.none(), st.floats(0, 2.0)), host=st.floats(-0.5, 0.5), cpu_scale=st.floats(0.1, 2.0),
)  # fmt: skip
def test_ranges_are_ordered_and_narrow(
    rest: float, fetch: float, computing: float, cores: float, workers: int | None, scale: float,
    new_fetch: float | None, host: float, cpu_scale: float,
) -> None:  # fmt: skip
    evidence = cpu_run(step_s=rest + fetch, fetch_s=fetch, fetch_cpu_s=fetch * computing, cores=cores, batches=100)
    change = Change(workers=workers, batch_scale=scale, fetch_s=new_fetch, remove_host_s=host, cpu_scale=cpu_scale)
    estimate = evidence.what_if(change)
    assert 0 < estimate.low <= estimate.likely <= estimate.high
    assert estimate.high / estimate.low <= 2.0 + 1e-9
    low, likely, high = estimate.speedup
    assert low <= likely <= high


def test_no_change_makes_a_step_more_than_a_hundred_times_as_fast() -> None:
    assert Estimate(0.1, 1e-9, 1e-9, 1e-9).speedup == (100.0, 100.0, 100.0)
    assert Estimate(0.1, 0.0005, 0.001, 0.002).speedup == pytest.approx((50.0, 100.0, 100.0))
    assert Estimate(0.1, 0.04, 0.05, 0.08).speedup == pytest.approx((1.25, 2.0, 2.5))
