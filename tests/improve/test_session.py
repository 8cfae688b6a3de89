"""A session's folder: one advisor at a time, settings that can change, a patch that is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.improve.bench import _make_room
from advisor.profile import resume
from advisor.session import Attempt, Progress, Session, Settings
from tests.improve.test_offers import WORKERS, diagnosis, offers


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(Settings(script=str(tmp_path / "train.py"), accept="all", budget=60.0), tmp_path / "runs")


def test_two_advisors_are_never_at_one_session(session: Session) -> None:
    with session.alone(), pytest.raises(AdvisorError, match="another advisor is at work"), session.alone():
        pass
    with session.alone():
        pass


def test_another_accept_forgets_what_was_begun_under_the_old_one(session: Session) -> None:
    offer = offers(diagnosis(WORKERS))[0]
    begun = Attempt(1, offer.place, offer.fix, 0, offer.document)
    session.store(Progress(attempts=[begun], declined=["x"], ended="the time (--budget) was used up"))
    same = session.changed(None, 120.0, None)
    assert same.settings.budget == 120.0
    assert same.progress().attempts == [begun] and same.progress().declined == ["x"] and not same.progress().ended
    other = same.changed("safe", None, None)
    assert other.settings.accept == "safe"
    assert not other.progress().attempts and not other.progress().declined
    assert Session.open(session.folder).settings == other.settings


def test_a_wrong_accept_changes_nothing(session: Session) -> None:
    with pytest.raises(AdvisorError, match="there is no rule"):
        resume(session.folder, accept="loader-worker")
    assert Session.open(session.folder).settings.accept == "all"


@pytest.mark.parametrize("contents", ["{", '{"script": 1}', ""])
def test_a_damaged_session_is_said_to_be_one(session: Session, contents: str) -> None:
    (session.folder / "session.json").write_text(contents)
    with pytest.raises(AdvisorError, match="cannot be read"):
        resume(session.folder)


def test_a_folder_that_is_no_session_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match=r"holds no session\.json"):
        resume(tmp_path)


def test_what_may_be_the_users_is_set_aside_not_removed(tmp_path: Path) -> None:
    run = tmp_path / "baseline"
    (run / "earlier").mkdir(parents=True)
    (run / "earlier" / "notes.txt").write_text("mine")
    _make_room(run)
    assert not run.exists()
    assert (tmp_path / "baseline.killed-1" / "earlier" / "notes.txt").read_text() == "mine"
    run.mkdir()
    (run / "output.log").write_text("")
    _make_room(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["baseline.killed-1"]


def test_a_run_whose_files_are_not_back_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "baseline" / "journal" / "journal.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}")
    with pytest.raises(AdvisorError, match="could not be put back"):
        _make_room(tmp_path / "baseline")
    assert log.exists()
