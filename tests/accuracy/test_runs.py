"""Results are kept for as long as what they are of does not change."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.findings import FixDocument
from fixtures.expectations import Case, everything, read_case
from tests.accuracy import runs
from tests.accuracy.child import Answer, apply, others_busy
from tests.accuracy.runs import Runner, StoppedError

DIFF = "--- a/script.py\n+++ b/script.py\n@@ -1,2 +1,2 @@\n first = 1\n-second = 2\n+second = 3\n"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    folder = tmp_path / "cases" / "some"
    (folder / "part").mkdir(parents=True)
    (folder / "script.py").write_text("first = 1\nsecond = 2\n")
    (folder / "twin.py").write_text("first = 2\n")
    (folder / "part" / "data.py").write_text("")
    (folder / "expect.toml").write_text('about = "x"\nkind = "clean"\n')
    return read_case(folder)


def kept(runner: Runner, case: Case, *key: str) -> list[Answer]:
    """What comes back from the store, and what had to be made for it."""
    made: list[Answer] = []

    def make() -> Answer:
        made.append(Answer(1.5, verdict="fine"))
        return made[-1]

    result = runner.kept(case, "findings", Answer, make, *key)
    assert result == Answer(1.5, verdict="fine")
    return made


def test_result_is_made_once(case: Case, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results")
    assert len(kept(runner, case, "1.0")) == 1
    assert len(kept(runner, case, "1.0")) == 0
    assert len(kept(Runner(tmp_path / "results"), case, "1.0")) == 0


def test_result_is_made_anew_for_another_version_or_another_text(case: Case, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results")
    kept(runner, case, "1.0")
    assert len(kept(runner, case, "1.1")) == 1
    (case.folder / "part" / "data.py").write_text("x = 1\n")
    assert len(kept(runner, case, "1.1")) == 1


def test_other_expectations_need_no_new_run(case: Case, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results")
    kept(runner, case, "1.0")
    (case.folder / "expect.toml").write_text('about = "y"\nkind = "clean"\nabsent = ["*"]\n')
    assert len(kept(runner, read_case(case.folder), "1.0")) == 0


def test_damaged_result_is_made_anew(case: Case, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results")
    kept(runner, case, "1.0")
    (runner.place(case) / "findings.json").write_text('{"key": ')
    assert len(kept(runner, case, "1.0")) == 1


def test_result_of_what_was_interrupted_is_not_kept(case: Case, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results")
    runner.interrupt()
    with pytest.raises(StoppedError):
        kept(runner, case)
    assert len(kept(Runner(tmp_path / "results"), case)) == 1


def test_case_that_could_not_be_profiled_is_tried_again(case: Case, tmp_path: Path) -> None:
    runner, made = Runner(tmp_path / "results"), []
    for _ in range(2):
        runner.kept(case, "findings", Answer, lambda: made.append(1) or Answer(1.0, error="the time limit"))
    assert len(made) == 2


def test_copy_is_what_the_author_has(case: Case, tmp_path: Path) -> None:
    copy = Runner(tmp_path / "results").copy(case)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*.py")) == ["part/data.py", "script.py"]


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('begun', flush=True); time.sleep(60)"
    began = time.monotonic()
    status, said = Runner(tmp_path).run([sys.executable, "-c", code], cwd=tmp_path, timeout=3)
    assert status < 0 and "begun" in said
    assert time.monotonic() - began < 30


def test_diff_applies_in_a_folder_of_a_repository_too(case: Case, tmp_path: Path) -> None:
    os.mkdir(tmp_path / ".git")  # not even one that git would take
    copy = Runner(tmp_path / "results").copy(case)
    assert apply(DIFF, copy) == ""
    assert (copy / "script.py").read_text() == "first = 1\nsecond = 3\n"
    assert "patch" in apply(DIFF, copy), "it does not apply twice"


def test_other_work_is_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        assert others_busy() > 0.3
    finally:
        process.kill()
        process.wait()


@pytest.mark.sessions
def test_case_is_profiled_and_its_diff_tried(tmp_path: Path) -> None:
    """A real one, through a real process: the answer has what the script's label asks for."""
    case = next(case for case in everything() if case.name == "remote_images")
    answer = Runner(tmp_path, short=True).findings(case)
    assert answer.error == ""
    found = next(each for each in answer.proposals if each.rule == "loader-workers")
    assert (found.line, found.file) == (case.found[0].line, "script.py")
    assert (found.applies, found.runs, found.trouble) == (True, True, "")
    assert (tmp_path / case.name / "findings" / answer.trace).is_file()


def test_recorded_trace_is_diagnosed(shared_traces: Path, tmp_path: Path) -> None:
    case = next(case for case in everything() if case.name == "h100_vit_inference")
    answer = Runner(tmp_path).findings(case)
    assert answer.error == ""
    assert "launch-bound" in {each.rule for each in answer.proposals}
    assert (tmp_path / case.name / "findings" / answer.trace).samefile(shared_traces / case.trace)


@pytest.mark.sessions
def test_what_was_measured_is_diagnosed_again_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in everything() if case.name == "loop_over_samples")
    measured = Runner(tmp_path, short=True).findings(case)
    assert measured.error == ""
    monkeypatch.setattr(runs, "source_digest", lambda: "another rule")
    again = Runner(tmp_path, short=True).findings(case)
    assert (again.trace, again.step_ms) == (measured.trace, measured.step_ms), "the same run"
    assert [each.rule for each in again.proposals] == [each.rule for each in measured.proposals]
    monkeypatch.setattr(runs, "measuring_digest", lambda: "another harness")
    monkeypatch.setattr(runs, "source_digest", lambda: "another rule, another harness")
    assert Runner(tmp_path, short=True).findings(case).trace != measured.trace


@pytest.mark.sessions
def test_script_that_fails_is_an_answer(case: Case, tmp_path: Path) -> None:
    case.script.write_text("raise RuntimeError('no data')\n")
    answer = Runner(tmp_path / "results", short=True).findings(case)
    assert "no data" in answer.error and answer.proposals == []


@pytest.mark.sessions
def test_gain_of_a_fix_is_measured_once_whatever_the_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in everything() if case.name == "remote_images")
    diff = "".join(
        difflib.unified_diff(
            case.script.read_text().splitlines(keepends=True),
            case.twin.read_text().splitlines(keepends=True),
            "a/script.py",
            "b/script.py",
        )
    )
    timed = Runner(tmp_path).gain(case, FixDocument("edit", "Switch it off.", diff)).timed
    assert timed is not None and 3 <= timed.pairs <= 6
    assert timed.speedup > 2 and timed.low <= timed.speedup <= timed.high
    monkeypatch.setattr(runs, "source_digest", lambda: "another rule")
    monkeypatch.setattr(Runner, "_child", lambda *args: pytest.fail("it is measured already"))
    assert Runner(tmp_path).gain(case, FixDocument("edit", "In other words.", diff)).timed == timed
    assert Runner(tmp_path, stored=True).gain(case, FixDocument("edit", "In other words.", diff)).timed == timed
    assert Runner(tmp_path, stored=True).gain(case, None).timed is None


@pytest.mark.sessions
def test_fix_that_fails_has_no_gain(case: Case, tmp_path: Path) -> None:
    case.script.write_text("import torch\nfor _ in range(10):\n    torch.nn.Linear(1, 1)(torch.ones(1, 1))\n")
    elsewhere = "--- a/script.py\n+++ b/script.py\n@@ -9 +9 @@\n-no\n+yes\n"
    answer = Runner(tmp_path / "results").gain(case, FixDocument("edit", "", elsewhere))
    assert answer.timed is None and answer.error
