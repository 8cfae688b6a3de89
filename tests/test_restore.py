"""Whose run it is: a live one is not touched, a dead one is put back by the next command."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor import pending
from advisor.harness import layout
from advisor.restore import mark, recover

OLD = 100_000.0  # seconds ago


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "advisor" / "pending"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that changed one file."""
    folder = tmp_path / "advisor_runs" / "script-1" / "baseline"
    (folder / layout.JOURNAL_DIR).mkdir(parents=True)
    (tmp_path / "user.txt").write_text("changed")
    (folder / layout.JOURNAL_DIR / "1").write_text("original")
    entry = {
        "op": "stash", "path": str(tmp_path / "user.txt"), "stash": "journal/1", "inode": None, "ino": [0, 0],
        "mode": 0o644, "mtime_ns": 10**18, "atime_ns": 10**18, "uid": os.getuid(), "gid": os.getgid(),
    }  # fmt: skip
    (folder / layout.JOURNAL_DIR / layout.JOURNAL_LOG).write_text("\n" + json.dumps(entry) + "\n")
    return folder


def died_with(run_dir: Path, **owner: object) -> None:
    path = run_dir / layout.JOURNAL_DIR / pending.OWNER_JSON
    path.write_text(json.dumps({"pid": 1 << 22, "started": "1", "host": platform.node(), **owner}))


def user_file(run_dir: Path) -> Path:
    return run_dir.parents[2] / "user.txt"


def test_dead_run_is_put_back_and_marked(run_dir: Path, state: Path) -> None:
    pending.register(run_dir).release()
    assert len(list(state.iterdir())) == 1
    ((found, done),) = recover()
    assert found == run_dir and done.put_back == [str(user_file(run_dir))]
    assert user_file(run_dir).read_text() == "original"
    assert list(state.iterdir()) == [] and not (run_dir / layout.JOURNAL_DIR).exists()
    record = json.loads((run_dir / layout.RUN_JSON).read_text())
    assert record["ended"] == "killed" and not record["complete"]
    assert recover() == []


def test_live_run_is_not_touched(run_dir: Path) -> None:
    claim = pending.register(run_dir)
    code = "import sys, pathlib; from advisor.restore import recover; print(recover(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(run_dir.parents[1])]
    for _ in range(2):
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
        assert user_file(run_dir).read_text() == "changed"
    claim.release()
    assert "Restored" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert user_file(run_dir).read_text() == "original"


def test_run_that_is_being_put_back_is_left_to_who_does_it(run_dir: Path) -> None:
    pending.register(run_dir).release()
    first = pending.claim(run_dir)
    assert first is not None and pending.claim(run_dir) is None
    first.release()
    second = pending.claim(run_dir)
    assert second is not None
    second.release()


def test_time_of_death_outlives_an_interrupted_recovery(run_dir: Path) -> None:
    pending.register(run_dir).release()
    for path in (run_dir / layout.JOURNAL_DIR).iterdir():
        os.utime(path, (OLD, OLD))
    first = pending.claim(run_dir)
    assert first is not None and first.died == pytest.approx(OLD, abs=10)
    first.release()
    second = pending.claim(run_dir)
    assert second is not None and second.died == first.died
    second.release()


def test_pid_that_was_used_again_is_not_the_owner(run_dir: Path) -> None:
    died_with(run_dir, pid=os.getpid(), started="not now")
    assert recover(run_dir.parents[1]) != []


def test_run_on_another_machine_counts_as_alive_for_a_while(run_dir: Path) -> None:
    died_with(run_dir, host="another")
    assert recover(run_dir.parents[1]) == []
    owner = run_dir / layout.JOURNAL_DIR / pending.OWNER_JSON
    os.utime(owner, (OLD, OLD))
    assert recover(run_dir.parents[1]) != []


def test_run_that_has_only_begun_to_sign_is_not_touched(run_dir: Path) -> None:
    assert recover(run_dir.parents[1]) == []
    (run_dir / layout.JOURNAL_DIR / pending.OWNER_JSON).write_text("")
    assert recover(run_dir.parents[1]) == []
    assert user_file(run_dir).read_text() == "changed"


def test_list_without_a_home_is_no_obstacle(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/none")
    pending.register(run_dir).release()
    assert len(recover(run_dir.parents[1])) == 1


def test_removed_session_is_taken_off_the_list(run_dir: Path, state: Path) -> None:
    pending.register(run_dir).release()
    for path in (run_dir / layout.JOURNAL_DIR).iterdir():
        path.unlink()
    (run_dir / layout.JOURNAL_DIR).rmdir()
    assert recover() == [] and list(state.iterdir()) == []


def test_processes_of_a_run_are_found_in_their_own_sessions(run_dir: Path) -> None:
    environment = {**os.environ, layout.OPTIONS_ENV: str(run_dir / layout.OPTIONS_JSON)}
    ours = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env={**environment, layout.OPTIONS_ENV: f"{run_dir}2/options.json"})
    try:
        deadline = time.monotonic() + 10
        while pending.end_processes(run_dir) == 0 and time.monotonic() < deadline:
            time.sleep(0.01)  # until it has become `sleep`
        assert ours.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        ours.kill()
        other.kill()
        other.wait()


def test_record_of_a_run_that_ended_is_not_marked_again(run_dir: Path) -> None:
    (run_dir / layout.RUN_JSON).write_text(json.dumps({"ended": "stopped", "complete": True}))
    mark(run_dir, "killed", "x")
    assert json.loads((run_dir / layout.RUN_JSON).read_text()) == {"ended": "stopped", "complete": True}
