"""A run folder as an object."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from advisor.errors import BAD_TRACE, AdvisorError
from advisor.evidence import Evidence
from advisor.harness import layout
from advisor.run import Run, decode_record


def write(folder: Path, record: layout.RunRecord) -> Path:
    (folder / layout.RUN_JSON).write_text(json.dumps(layout.to_dict(record)))
    return folder


def test_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = layout.RunRecord(
        script="train.py",
        losses=[1.0, 0.5],
        loaders=[layout.Loader(site=layout.Site("train.py", 12, 4), num_workers=2, wait_s=0.01)],
        call_sites=[layout.CallSite("Tensor.item", layout.Site("train.py", 20), details={"every": 1})],
        failure=layout.Failure(kind="exit", exit_code=7),
    )
    assert Run.load(write(tmp_path, record)).record == record


def test_whole_numbers_are_taken_for_seconds_and_unknown_fields_are_left() -> None:
    record = decode_record(b'{"timing": {"step_s": 1, "of_the_future": []}, "also_new": {"a": 1}}')
    assert record.timing.step_s == 1.0
    assert record.loaders == []


def test_diverged_loss_is_still_a_record(tmp_path: Path) -> None:
    losses = Run.load(write(tmp_path, layout.RunRecord(losses=[1.0, float("nan"), float("inf")]))).record.losses
    assert losses[0] == 1.0 and math.isnan(losses[1]) and math.isinf(losses[2])


def test_run_without_traces_still_says_what_its_record_knows(tmp_path: Path) -> None:
    record = layout.RunRecord(timing=layout.Timing(step_s=0.02, samples_per_step=8, settled=True), traces=["gone.json"])
    run = Run.load(write(tmp_path, record))
    assert run.traces == () and run.trace is None and run.detail is None
    evidence = Evidence.from_run(run)
    assert evidence.step_s == 0.02
    assert evidence.samples_per_s == pytest.approx(400)
    assert evidence.verdict == "no step was traced"
    assert evidence.figures["step_ms"] == pytest.approx(20)
    assert evidence.breakdown.shares == {}
    assert (evidence.kernels, evidence.syncs, evidence.copies.rows, evidence.operators.rows) == ((), (), (), ())


@pytest.mark.parametrize("profiled_s, said", [(0.011, False), (0.046, True)])
def test_a_profiler_that_makes_steps_much_longer_is_said_to(profiled_s: float, said: bool, tmp_path: Path) -> None:
    record = layout.RunRecord(profile_step_s=profiled_s, timing=layout.Timing(steps=20, step_s=0.01, settled=True))
    notes = Evidence.from_run(Run.load(write(tmp_path, record))).notes
    assert any("4.6 times as long under the profiler" in note for note in notes) == said


@pytest.mark.parametrize(
    ("others", "idle", "said"),
    [(0.9, 0.0, True), (0.9, 14.0, False), (0.05, 0.0, False), (None, None, False), (0.3, 0.4, True)],
)
def test_other_programs_on_all_cores_are_said(
    others: float | None, idle: float | None, said: bool, tmp_path: Path
) -> None:
    timing = layout.Timing(steps=20, step_s=0.01, settled=True, others_cores=others, idle_cores=idle)
    notes = Evidence.from_run(Run.load(write(tmp_path, layout.RunRecord(timing=timing)))).notes
    assert any("Other programs kept" in note for note in notes) == said


def test_traces_are_read_from_the_folder(tmp_path: Path, shared_traces: Path) -> None:
    name = "v100-resnet50-workers0.pt.trace.json.gz"
    (tmp_path / name).write_bytes((shared_traces / name).read_bytes())
    run = Run.load(write(tmp_path, layout.RunRecord(traces=[name])))
    assert run.trace is not None and len(run.trace.kernels) == 8772
    assert Evidence.from_run(run).breakdown.on_device


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b'{"losses": "many"}', "losses"),
        (b'{"schema": 99}', "newer advisor"),
    ],
)
def test_damaged_record_is_one_clear_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / layout.RUN_JSON).write_bytes(content)
    with pytest.raises(AdvisorError, match=message):
        Run.load(tmp_path)


def test_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match=r"holds no run\.json"):
        Run.load(tmp_path)
    with pytest.raises(AdvisorError, match="is not a folder"):
        Run.load(tmp_path / "nowhere")


def test_damage_has_the_exit_status_of_a_bad_trace(tmp_path: Path) -> None:
    (tmp_path / layout.RUN_JSON).write_bytes(b"[1]")
    with pytest.raises(AdvisorError) as caught:
        Run.load(tmp_path)
    assert caught.value.exit_status == BAD_TRACE
