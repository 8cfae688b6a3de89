"""TensorBoard on a folder of sessions: really started, and asked over HTTP what it shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.harness.layout import Memory, RunRecord, Timing, Window, to_dict
from advisor.tensorboard import scalars
from advisor.tensorboard.serve import Server


def _record() -> RunRecord:
    return RunRecord(
        script="train.py",
        started=1_700_000_000.0,
        startup_s=2.0,
        windows=[Window("settle", 0, 10), Window("timing", 10, 3)],
        losses=[2.3, 2.1],
        memory=Memory(peak_allocated=2**30),
        timing=Timing(
            steps=3,
            elapsed=0.15,
            step_s=0.05,
            intervals=[0.05, 0.06, 0.04],
            loader_wait_s=[0.01, 0.02, 0.01],
            samples_per_step=32.0,
        ),
    )


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session with one run, without its trace."""
    run = tmp_path / "sessions" / "train-1" / "baseline"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(to_dict(_record())))
    return run


def _ours(run: Path) -> list[Path]:
    return sorted(run.glob("events.out.tfevents.*.advisor"))


def test_runs_are_found_below_the_sessions_folder(session: Path) -> None:
    (session / "files").mkdir()
    (session / "files" / "run.json").write_text("{}")  # what a script wrote is no run of ours
    assert scalars.find_runs(session.parents[1]) == [session]
    assert scalars.find_runs(session) == [session]


def test_step_times_and_throughput_are_points_at_their_steps() -> None:
    points = list(scalars.points(_record()))
    assert [(step, value) for tag, step, value, _ in points if tag == "step/ms"] == [(10, 50.0), (11, 60.0), (12, 40.0)]
    rates = [value for tag, _, value, _ in points if tag == "step/samples_per_s"]
    assert rates == pytest.approx([640.0, 533.333, 800.0], rel=1e-4)
    assert [value for tag, _, value, _ in points if tag == "run/samples_per_s"] == pytest.approx([640.0])
    assert [value for tag, _, value, _ in points if tag == "loss"] == [2.3, 2.1]


def test_writing_again_changes_nothing_until_the_run_does(session: Path) -> None:
    assert scalars.write(session) > 0
    first = _ours(session)
    assert len(first) == 1
    assert scalars.write(session) == 0
    assert _ours(session) == first
    later = first[0].stat().st_mtime + 5
    os.utime(session / "run.json", (later, later))
    assert scalars.write(session) > 0
    assert len(_ours(session)) == 1


def test_event_files_of_the_script_are_left_alone(session: Path) -> None:
    theirs = session / "events.out.tfevents.1.host"
    theirs.write_bytes(b"theirs")
    scalars.write(session)
    os.utime(session / "run.json")
    scalars.write(session)
    assert theirs.read_bytes() == b"theirs"


def test_a_damaged_run_is_a_clear_error(session: Path) -> None:
    (session / "run.json").write_text("{")
    with pytest.raises(AdvisorError, match="profile the script again"):
        scalars.write(session)


def test_writing_scalars_needs_neither_torch_nor_tensorflow(session: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['tensorflow'] = None\n"
        f"from advisor.tensorboard import scalars; print(scalars.write({str(session)!r}))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(shown.stdout) > 0


def test_no_such_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="not a folder"):
        Server(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shared_traces: Path) -> Iterator[Server]:
    """TensorBoard on one session that has a trace."""
    folder = tmp_path_factory.mktemp("sessions")
    run = folder / "train-1" / "baseline"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(to_dict(_record())))
    shutil.copy(shared_traces / "cpu-only-rank.json.gz", run / "host_123.1700000000000000000.pt.trace.json.gz")
    # The detail window is not for torch-tb-profiler: its durations are inflated.
    (run / "detail").mkdir()
    shutil.copy(shared_traces / "cpu-only-rank.json.gz", run / "detail" / "host_123.17.trace.json.gz")
    scalars.write(run)
    with Server(folder, port=0) as running:
        yield running


def _ask(server: Server, path: str) -> object:
    with urllib.request.urlopen(server.url + path, timeout=20) as answer:
        return json.loads(answer.read())


def _wait_for(server: Server, path: str, ready: str) -> object:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = _ask(server, path)
        if ready in json.dumps(answer):
            return answer
        time.sleep(0.5)
    raise AssertionError(f"{path} never showed {ready}: {answer}")


def test_tensorboard_lists_the_run(server: Server) -> None:
    assert _wait_for(server, "data/runs", "baseline") == ["train-1/baseline"]


def test_tensorboard_shows_step_time_and_throughput(server: Server) -> None:
    tags = _wait_for(server, "data/plugin/scalars/tags", "step/ms")
    assert {"step/ms", "step/samples_per_s", "run/mean_step_ms"} <= set(tags["train-1/baseline"])  # type: ignore[index]
    points = _ask(server, "data/plugin/scalars/scalars?run=train-1%2Fbaseline&tag=step%2Fms")
    assert [value for _, _, value in points] == pytest.approx([50.0, 60.0, 40.0])  # type: ignore[attr-defined]


def test_torch_tb_profiler_shows_the_trace_and_not_the_detail_window(server: Server) -> None:
    answer = _wait_for(server, "data/plugin/pytorch_profiler/runs", "baseline")
    assert answer["runs"] == ["train-1/baseline"]  # type: ignore[index]
    workers = _ask(server, "data/plugin/pytorch_profiler/workers?run=train-1%2Fbaseline&view=Overview")
    assert workers == ["host_123"]


def test_a_port_that_is_taken_is_a_clear_error(server: Server, tmp_path: Path) -> None:
    port = int(server.url.rstrip("/").rsplit(":", 1)[1])
    with pytest.raises(AdvisorError, match=f"{port}.*another port"):
        Server(tmp_path, port=port)
