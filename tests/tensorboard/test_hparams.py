"""Every trial in TensorBoard's HParams tab: which fixes are on, and how fast the script is with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor import findings
from advisor.findings import Findings, FixDocument, Measured, Outcome, Predicted, Range, Status, Trial
from advisor.harness.layout import RunRecord, Timing, Window, to_dict
from advisor.tensorboard import hparams, scalars
from advisor.tensorboard.serve import Server


def _run(folder: Path, step_s: float) -> None:
    folder.mkdir(parents=True)
    record = RunRecord(
        script="train.py",
        started=1_700_000_000.0,
        startup_s=2.0,
        wall_s=30.0,
        windows=[Window("settle", 0, 10), Window("timing", 10, 3)],
        timing=Timing(
            steps=3, elapsed=3 * step_s, step_s=step_s, intervals=[step_s] * 3, loader_wait_s=[], samples_per_step=32.0
        ),
    )
    (folder / "run.json").write_text(json.dumps(to_dict(record)))


def _trial(number: int, rule: str, status: Status, speedup: float | None) -> Trial:
    measured = None
    if speedup is not None:
        measured = Measured(before_ms=50.0, after_ms=50.0 / speedup, speedup=speedup, low=speedup, high=speedup)
    return Trial(
        number=number,
        rule=rule,
        title=rule,
        safety="exact",
        status=status,
        reason="",
        predicted=Predicted(speedup=Range(1.1, 1.2, 1.3)),
        fix=FixDocument(kind="edit", text=""),
        folder=f"{number:02d}-{rule}",
        measured=measured,
    )


TRIALS = [
    _trial(1, "loader-workers", "kept", 2.0),
    _trial(2, "compile", "reverted", 0.9),
    _trial(3, "amp-autocast", "failed", None),
    _trial(4, "batch-size", "kept", 1.5),
]


def _session(folder: Path, trials: list[Trial]) -> Path:
    """A session's folder, without what is not read here."""
    _run(folder / "baseline", 0.05)
    for trial in trials:
        _run(folder / trial.folder, 0.05 / (trial.measured.speedup if trial.measured else 1.0))
        _run(folder / trial.folder / "pairs" / "2-before", 0.05)
        _run(folder / trial.folder / "pairs" / "2-after", 0.05)
    _run(folder / "final-2" / "1-before", 0.05)
    _run(folder / "04-batch-size-search" / "1", 0.05)
    (folder / "session.json").write_text("{}")
    (folder / "trials.json").write_bytes(msgspec.json.encode({"trials": trials}))
    return folder


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return _session(tmp_path / "sessions" / "train-1", TRIALS)


def _described(session: Path) -> dict[str, hparams.Tried]:
    runs = scalars.find_runs(session.parent)
    return {run.name: tried for run, tried in hparams.describe(runs).items()}


def test_trials_are_runs_and_their_repeats_are_not(session: Path) -> None:
    names = ["01-loader-workers", "02-compile", "03-amp-autocast", "04-batch-size", "baseline"]
    for folder in (session, session.parent, session.parent.parent):
        assert [run.name for run in scalars.find_runs(folder)] == names


def test_what_a_killed_run_has_left_is_no_run(session: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(session, copy)
    shutil.copytree(copy / "baseline", copy / "baseline.killed-1")
    assert [run.name for run in scalars.find_runs(copy)] == [run.name for run in scalars.find_runs(session)]


def test_a_fix_is_on_in_its_own_trial_and_stays_on_when_it_is_kept(session: Path) -> None:
    on = {name: {rule for rule, is_on in tried.fixes.items() if is_on} for name, tried in _described(session).items()}
    assert on == {
        "baseline": set(),
        "01-loader-workers": {"loader-workers"},
        "02-compile": {"loader-workers", "compile"},
        "03-amp-autocast": {"loader-workers", "amp-autocast"},
        "04-batch-size": {"loader-workers", "batch-size"},
    }


def test_the_speedup_is_that_against_the_script_as_it_was(session: Path) -> None:
    found = {name: tried.speedup for name, tried in _described(session).items()}
    assert found == {
        "baseline": 1.0,
        "01-loader-workers": 2.0,
        "02-compile": pytest.approx(1.8),
        "03-amp-autocast": None,
        "04-batch-size": pytest.approx(3.0),
    }


def test_a_finished_session_says_it_in_its_report(session: Path) -> None:
    before = _described(session)
    (session / "trials.json").unlink()
    outcome = Outcome(trials=TRIALS, baseline_ms=50.0, final_ms=17.0, speedup=Range(2.9, 3.0, 3.1))
    document = Findings(
        verdict="", script=None, step_ms=50.0, samples_per_s=None, device="", figures={}, findings=[], outcome=outcome
    )
    (session / "findings.json").write_bytes(findings.encode(document))
    assert _described(session) == before


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"trials": [{"number": 1}]}'])
def test_a_session_without_readable_trials_has_its_runs_all_the_same(session: Path, content: str | None) -> None:
    (session / "trials.json").unlink()
    if content is not None:
        (session / "trials.json").write_text(content)
    assert _described(session) == {}
    assert all(scalars.write(run) > 0 for run in scalars.find_runs(session))


def test_a_later_trial_is_written_to_the_earlier_runs(session: Path) -> None:
    def write() -> list[int]:
        runs = scalars.find_runs(session)
        tried = hparams.describe(runs)
        return [scalars.write(run, tried.get(run)) for run in runs]

    assert all(write())
    assert not any(write())
    _run(session / "05-tf32", 0.04)
    (session / "trials.json").write_bytes(
        msgspec.json.encode({"trials": [*TRIALS, _trial(5, "tf32", "reverted", 1.0)]})
    )
    assert all(write())
    assert all(len(list(run.glob("events.out.*.advisor"))) == 1 for run in scalars.find_runs(session))


def test_it_needs_neither_torch_nor_tensorflow(session: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['tensorflow'] = None\n"
        "from advisor.tensorboard import hparams, scalars\n"
        f"runs = scalars.find_runs({str(session)!r}); tried = hparams.describe(runs)\n"
        "print(sum(scalars.write(run, tried[run]) for run in runs))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(shown.stdout) > 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """TensorBoard on two sessions that tried different rules, and one that tried none."""
    folder = tmp_path_factory.mktemp("sessions")
    _session(folder / "train-1", TRIALS)
    _session(folder / "other-1", [_trial(1, "tf32", "kept", 1.2)])
    _session(folder / "plain-1", [])
    runs = scalars.find_runs(folder)
    tried = hparams.describe(runs)
    for run in runs:
        scalars.write(run, tried.get(run))
    with Server(folder, port=0) as running:
        yield running


def _ask(server: Server, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{server.url}data/plugin/hparams/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def _groups(server: Server) -> dict[str, Any]:
    """The rows of the tab by run, once they are all there."""
    metrics = [{"metric": {"group": "", "tag": tag}} for tag in hparams.METRICS]
    body = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE"],
        "colParams": metrics,
        "startIndex": 0,
        "sliceSize": 100,
    }
    deadline = time.monotonic() + 60
    rows: dict[str, Any] = {}
    while time.monotonic() < deadline:
        groups = _ask(server, "session_groups", body).get("sessionGroups", [])
        rows = {group["sessions"][0]["name"]: group for group in groups}
        if len(rows) == 7 and all(len(row.get("metricValues", [])) >= 2 for row in rows.values()):
            return rows
        time.sleep(0.5)
    raise AssertionError(f"never seven rows with their metrics: {rows}")


def test_tensorboard_has_a_column_for_every_rule_of_every_session(server: Server) -> None:
    _groups(server)
    experiment = _ask(server, "experiment", {"experimentName": "", "includeMetrics": True})
    assert {(column["name"], column["type"]) for column in experiment["hparamInfos"]} == {
        (rule, "DATA_TYPE_BOOL") for rule in ("amp-autocast", "batch-size", "compile", "loader-workers", "tf32")
    }
    assert [metric["name"]["tag"] for metric in experiment["metricInfos"]] == list(hparams.METRICS)


def test_tensorboard_shows_each_trial_with_its_fixes_and_figures(server: Server) -> None:
    rows = _groups(server)
    batch = rows["train-1/04-batch-size"]
    assert batch["hparams"] == {
        "loader-workers": True,
        "compile": False,
        "amp-autocast": False,
        "batch-size": True,
    }
    figures = {value["name"]["tag"]: value["value"] for value in batch["metricValues"]}
    assert figures == {
        "run/samples_per_s": pytest.approx(960.0),
        "run/mean_step_ms": pytest.approx(33.3, abs=0.1),
        "run/speedup": pytest.approx(3.0),
    }
    assert not any(rows["train-1/baseline"]["hparams"].values())
    assert rows["other-1/01-tf32"]["hparams"] == {"tf32": True}


def test_tensorboard_knows_which_trials_failed(server: Server) -> None:
    rows = _groups(server)
    failed = [name for name, row in rows.items() if row["sessions"][0]["status"] == "STATUS_FAILURE"]
    assert failed == ["train-1/03-amp-autocast"]


def test_tensorboard_lists_no_repeats(server: Server) -> None:
    with urllib.request.urlopen(server.url + "data/runs", timeout=20) as answer:
        runs = json.loads(answer.read())
    assert sorted(runs) == sorted(
        [f"train-1/{name}" for name in ("baseline", *(trial.folder for trial in TRIALS))]
        + ["other-1/baseline", "other-1/01-tf32", "plain-1/baseline"]
    )
