"""The loop with real runs of real scripts: what is kept, what is not, and why."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.findings import Trial
from advisor.improve.write import write
from advisor.profile import Profiled, Talk, profile, resume
from advisor.session import Settings
from tests.conftest import PYTHON, QUICK, tree

# As short as a run can be: a loop makes many.
SHORT = replace(QUICK, min_seconds=0.2, min_steps=10)

# Files over a slow network: with workers, several are under way at a time.
SCRIPT = """\
import math, multiprocessing, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

torch.set_num_threads(1)


class Photos(Dataset):
    def __len__(self):
        return {length}

    def __getitem__(self, index):
        {fetch}
        return torch.full((16,), index / 4000), index % 2


{before}
def main():
    loader = DataLoader(Photos(), batch_size=8, shuffle=True)  # one process
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""

SLOW = "time.sleep(0.001)"


def text(fetch: str, before: str = "", length: int = 4000) -> str:
    return SCRIPT.format(fetch=fetch, before=before, length=length)


def script(folder: Path, fetch: str, before: str = "", length: int = 4000) -> Path:
    path = folder / "train.py"
    path.write_text(text(fetch, before, length))
    return path


def settings(path: Path, accept: str) -> Settings:
    return Settings(script=str(path), python=PYTHON, cwd=str(path.parent), accept=accept, timeout=120.0)


def improved(folder: Path, fetch: str, before: str = "", accept: str = "loader-workers") -> Profiled:
    path = script(folder, fetch, before)
    return profile(settings(path, accept), folder / "advisor_runs", options=SHORT)


def only_trial(done: Profiled) -> Trial:
    assert done.document.outcome is not None
    return done.document.outcome.trials[0]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profiled, list[str], Path]:
    """A session in which workers helped: the result, what was said, the user's folder."""
    folder = tmp_path_factory.mktemp("kept")
    path, said = script(folder, SLOW), list[str]()
    done = profile(settings(path, "loader-workers"), folder / "advisor_runs", Talk(say=said.append), replace(SHORT))
    return done, said, folder


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_a_fix_that_helps_is_kept_with_its_interval(kept: tuple[Profiled, list[str], Path]) -> None:
    done, said, _ = kept
    trial = only_trial(done)
    assert trial.status == "kept", trial.reason
    assert trial.measured is not None
    assert trial.measured.low > 1.02
    assert trial.measured.low <= trial.measured.speedup <= trial.measured.high
    assert trial.measured.pairs >= 3
    assert any(text.startswith("kept: ") for text in said)
    assert trial.verdict_after
    outcome = done.document.outcome
    assert outcome is not None
    assert outcome.kept[0] == "loader-workers"
    assert done.document.findings[0].status == "kept"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_every_number_is_that_of_a_run_folder(kept: tuple[Profiled, list[str], Path]) -> None:
    done, _, _ = kept
    trial = only_trial(done)
    assert trial.measured is not None
    for names, mean in ((trial.before, trial.measured.before_ms), (trial.after, trial.measured.after_ms)):
        steps = [_step_ms(done.session.folder / name) for name in names]
        assert sum(steps) / len(steps) == pytest.approx(mean)


def _step_ms(folder: Path) -> float:
    from advisor.run import Run

    step = Run.load(folder).record.timing.step_s
    assert step is not None
    return step * 1e3


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_the_computation_stays_the_same(kept: tuple[Profiled, list[str], Path]) -> None:
    numerics = only_trial(kept[0]).numerics
    assert numerics is not None
    assert numerics.kind == "loss" and len(numerics.before) >= 10
    assert numerics.before == numerics.after


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_nothing_on_disk_changes_until_it_is_written(kept: tuple[Profiled, list[str], Path]) -> None:
    done, _, folder = kept
    path = folder / "train.py"
    assert path.read_text() == text(SLOW)
    copy = folder / "copy"
    copy.mkdir()
    (copy / "train.py").write_text(path.read_text())
    subprocess.run(["git", "apply", "--include=train.py", done.files["patch"]], cwd=copy, check=True)
    assert "num_workers=" in (copy / "train.py").read_text()
    assert done.edit is not None
    try:
        write(done.edit)
        assert path.read_text() == (copy / "train.py").read_text()
    finally:
        path.write_text(text(SLOW))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_a_finished_session_is_shown_again_without_running_anything(
    kept: tuple[Profiled, list[str], Path],
) -> None:
    done, _, _ = kept
    before = tree(done.session.folder)
    again = resume(done.session.folder, options=SHORT)
    assert again.document == done.document
    assert again.edit is not None and done.edit is not None
    assert again.edit.contents == done.edit.contents
    after = tree(done.session.folder)
    assert {name for name in after if name.endswith("run.json")} == {
        name for name in before if name.endswith("run.json")
    }


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.xdist_group("kept")  # one session, seen from all sides
def test_a_session_whose_script_was_changed_is_not_gone_on_with(kept: tuple[Profiled, list[str], Path]) -> None:
    done, _, folder = kept
    path = folder / "train.py"
    path.write_text("# changed\n" + path.read_text())
    try:
        before = tree(done.session.folder)
        with pytest.raises(AdvisorError, match="was changed since this session began"):
            resume(done.session.folder, options=SHORT)
        assert tree(done.session.folder) == before, "the report and the patch are as they were"
    finally:
        path.write_text(text(SLOW))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_fix_that_brings_nothing_is_reverted(tmp_path: Path) -> None:
    # A disk that serves any further reader far worse: a session is short, and what was read ahead hides part of it.
    fetch = "info = get_worker_info()\n        time.sleep(0.004 * (4 * info.num_workers if info is not None else 1))"
    trial = only_trial(improved(tmp_path, fetch))
    assert trial.status == "reverted", trial.reason
    assert trial.measured is not None and trial.measured.high < 1.0
    assert "slower" in trial.reason


@pytest.mark.slow
@pytest.mark.sessions
def test_a_fix_that_crashes_is_shown_with_its_error_and_never_tried_again(tmp_path: Path) -> None:
    before = 'multiprocessing.set_start_method("spawn", force=True)\nPhotos.transform = None\n'
    fetch = f'{SLOW}\n        assert get_worker_info() is None, "no workers, please"'
    done = improved(tmp_path, fetch, before)
    trial = only_trial(done)
    assert trial.status == "failed", trial.reason
    assert "no workers, please" in trial.reason
    assert [attempt.final for attempt in done.session.progress().attempts] == [True]
    assert done.edit is None and "patch" not in done.files


@pytest.mark.slow
@pytest.mark.sessions
def test_a_fix_that_makes_the_loss_nan_fails_whatever_it_brings(tmp_path: Path) -> None:
    fetch = f"{SLOW}\n        if get_worker_info() is not None:\n            return torch.full((16,), math.nan), 0"
    trial = only_trial(improved(tmp_path, fetch))
    assert trial.status == "failed", trial.reason
    assert "NaN" in trial.reason


@pytest.mark.slow
@pytest.mark.sessions
def test_an_exact_fix_that_changes_the_data_fails(tmp_path: Path) -> None:
    fetch = f"{SLOW}\n        if get_worker_info() is not None:\n            return torch.full((16,), 0.5), 0"
    trial = only_trial(improved(tmp_path, fetch))
    assert trial.status == "failed", trial.reason
    assert "it changes what is computed" in trial.reason


@pytest.mark.slow
@pytest.mark.sessions
def test_nothing_is_tried_that_was_not_accepted(tmp_path: Path) -> None:
    done = improved(tmp_path, SLOW, accept="tf32-matmul")
    assert done.document.outcome is None
    assert [finding.status for finding in done.document.findings if finding.rule == "loader-workers"] == ["proposed"]
    assert sorted(path.name for path in done.session.folder.iterdir() if path.is_dir()) == ["baseline"]


def test_an_unknown_rule_is_said_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="there is no rule loader-worker;"):
        improved(tmp_path, SLOW, accept="loader-worker")
    assert not (tmp_path / "advisor_runs").exists()


@pytest.mark.slow
@pytest.mark.sessions
def test_a_script_that_is_over_soon_is_improved_too(tmp_path: Path) -> None:
    path = script(tmp_path, "time.sleep(0.004)", length=25 * 8)
    done = profile(settings(path, "loader-workers"), tmp_path / "advisor_runs", options=SHORT)
    trial = only_trial(done)
    assert trial.status in ("kept", "inconclusive"), trial.reason
    assert trial.measured is not None and trial.measured.speedup > 1.2
    assert trial.numerics is not None and trial.numerics.drift == 0
