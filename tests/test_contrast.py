"""`advisor compare`: which runs belong to a side, what is said of the two, what differs between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import cli
from advisor.contrast import contrast, open_side, sentence
from advisor.errors import AdvisorError
from advisor.findings import FindingDocument, FixDocument, Predicted, Range, Trial
from advisor.harness.layout import Environment, Failure, Loader, RunRecord, Timing
from advisor.report import comparison
from advisor.session import Attempt, Progress, Session, Settings
from tests.conftest import Profiled

PREDICTED = Predicted(Range(1.1, 1.2, 1.3))
FIX = FixDocument("argument", "Run it with --workers 2.", arguments={"--workers": "2"})
FINDING = FindingDocument(1, "loader-workers", "t", "s", "exact", {}, PREDICTED, FIX)


def run(folder: Path, step_s: float | None, **changes: object) -> Path:
    """A run folder of a run that was only timed."""
    folder.mkdir(parents=True)
    facts: dict[str, object] = {
        "script": "train.py",
        "timing": Timing(step_s=step_s, samples_per_step=32.0, settled=True),
        "environment": Environment(torch="2.15.0", cpu="a processor"),
    }
    (folder / "run.json").write_text(json.dumps(asdict(RunRecord(**(facts | changes)))))  # type: ignore[arg-type]
    return folder


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Two trials: the first is kept (0.100 → 0.080 s), the second (0.079 s) is tried on top of it."""
    made = Session.create(Settings("train.py"), tmp_path / "runs")
    folder = made.folder
    run(folder / "baseline", 0.100)
    run(folder / "repeats" / "2", 0.101)
    run(folder / "01-loader-workers", 0.080)
    before = [0.102, 0.100, 0.099]
    for number, step_s in enumerate(before, 1):
        run(folder / "01-loader-workers" / "pairs" / f"{number}-before", step_s)
        run(folder / "01-loader-workers" / "pairs" / f"{number}-after", step_s * 0.8)
    run(folder / "02-pin-memory", 0.079)
    for number in (1, 2, 3):
        run(folder / "02-pin-memory" / "pairs" / f"{number}-before", 0.080)
        run(folder / "02-pin-memory" / "pairs" / f"{number}-after", 0.079)
    run(folder / "final-2" / "1-before", 0.103)
    run(folder / "final-2" / "1-after", 0.079)

    def trial(number: int, name: str) -> Trial:
        pairs = [[f"{name}/pairs/{each}-{which}" for each in (1, 2, 3)] for which in ("before", "after")]
        return Trial(number, name[3:], "t", "exact", "kept", "r", PREDICTED, FIX, name, pairs[0], pairs[1])

    made.store(
        Progress(
            trials=[trial(1, "01-loader-workers"), trial(2, "02-pin-memory")],
            attempts=[Attempt(1, "p", "f", 0, FINDING, done=True), Attempt(2, "p", "f", 1, FINDING, done=True)],
        )
    )
    return folder


def names(folder: Path, session: Path) -> list[str]:
    return [str(each.folder.relative_to(session)) for each in open_side(folder).runs]


# Sides.


def test_a_session_is_the_script_as_it_was_found(session: Path) -> None:
    assert names(session, session) == [
        "baseline",
        "repeats/2",
        "01-loader-workers/pairs/1-before",
        "01-loader-workers/pairs/2-before",
        "01-loader-workers/pairs/3-before",
        "final-2/1-before",
    ]


def test_a_trial_is_the_patched_script(session: Path) -> None:
    found = names(session / "02-pin-memory", session)
    assert found == ["02-pin-memory", *(f"02-pin-memory/pairs/{number}-after" for number in (1, 2, 3))]


def test_a_run_is_itself(session: Path) -> None:
    assert names(session / "baseline", session) == ["baseline"]
    assert names(session / "repeats" / "2", session) == ["repeats/2"]


def test_runs_that_came_to_nothing_do_not_count(session: Path) -> None:
    run(session / "repeats" / "3", None)
    run(session / "repeats" / "4", 0.1, failure=Failure("killed", "killed"))
    (session / "repeats" / "5").mkdir()
    assert "repeats/3" not in names(session, session)
    assert len(names(session, session)) == 6


def test_a_session_that_was_killed_before_its_first_trial_ended_can_be_compared(session: Path) -> None:
    (session / "trials.json").unlink()
    assert names(session, session) == ["baseline", "repeats/2", "final-2/1-before"]


@pytest.mark.parametrize("what", ["nothing", "empty", "untimed", "nan"])
def test_what_cannot_be_compared_is_said_in_a_sentence(tmp_path: Path, what: str) -> None:
    folder = tmp_path / what
    if what == "empty":
        folder.mkdir()
    elif what != "nothing":
        run(folder, None if what == "untimed" else float("nan"))
    with pytest.raises(AdvisorError, match=str(folder)) as error:
        open_side(folder)
    assert "\n" not in str(error.value)


# What is said.


def test_runs_in_alternation_are_compared_pair_by_pair(session: Path) -> None:
    result = contrast(open_side(session), open_side(session / "01-loader-workers"))
    assert result.comparison.paired
    assert result.comparison.speedup == pytest.approx(1.25)
    assert sentence(result).startswith("B is 1.25× as fast as A (1.2")
    assert "3 pairs of runs in alternation" in sentence(result)


def test_the_other_way_round_it_is_slower_by_as_much(session: Path) -> None:
    result = contrast(open_side(session / "01-loader-workers"), open_side(session))
    assert result.comparison.paired
    assert result.comparison.speedup == pytest.approx(0.8)
    assert sentence(result).startswith("B is slower than A: 0.80× as fast")
    assert "25% more time" in sentence(result)


def test_runs_of_two_sessions_are_groups_and_the_machine_is_named_as_a_doubt(session: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, step_s in (("baseline", 0.131), ("repeats/2", 0.130), ("repeats/3", 0.132)):
        run(other / name, step_s)
    result = contrast(open_side(session), open_side(other))
    assert not result.comparison.paired
    assert result.comparison.runs == (6, 3)
    assert "slower" in sentence(result)
    assert any("on the machine" in note for note in result.notes)


def test_two_single_runs_say_what_they_assume(tmp_path: Path) -> None:
    one, near, far = (run(tmp_path / name, step) for name, step in (("1", 0.1), ("2", 0.11), ("3", 0.2)))
    near_by = sentence(contrast(open_side(one), open_side(near)))
    assert near_by.startswith("no difference can be told")
    assert "1 run each" in near_by
    assert "smallest gain that could have been seen is 15%" in near_by
    assert "5% were assumed" in near_by
    assert sentence(contrast(open_side(one), open_side(far))).startswith("B is slower than A: 0.50×")


def test_a_side_beside_itself_is_no_difference(session: Path) -> None:
    result = contrast(open_side(session), open_side(session))
    assert not result.comparison.different
    assert "the two have runs in common" in result.notes


def test_samples_are_compared_when_the_batch_size_changed(tmp_path: Path) -> None:
    one = run(tmp_path / "1", 0.1)
    other = run(tmp_path / "2", 0.15, timing=Timing(step_s=0.15, samples_per_step=64.0, settled=True))
    result = contrast(open_side(one), open_side(other))
    assert result.per_sample
    assert result.comparison.speedup == pytest.approx(4 / 3)
    assert "per sample" in sentence(result)


# What differs.


def test_what_differs_around_the_script_is_listed_and_nothing_else(tmp_path: Path) -> None:
    one = run(tmp_path / "1", 0.1, argv=["--epochs", "1"], loaders=[Loader(trains=True)])
    facts = Environment(
        torch="2.14.0",
        cpu="a processor",
        packages={"timm": "1.0"},
        variables={"OMP_NUM_THREADS": "1"},
        intraop_threads=2,
        shm_bytes=12345,
        anomaly=True,
    )
    loaders = [Loader(trains=True, num_workers=2)]
    other = run(tmp_path / "2", 0.1, argv=["--epochs", "a b"], environment=facts, loaders=loaders)
    result = contrast(open_side(one), open_side(other))
    assert {each.what: (each.a, each.b) for each in result.differences} == {
        "script arguments": ("--epochs 1", "--epochs 'a b'"),
        "torch": ("2.15.0", "2.14.0"),
        "threads in an operator": ("1", "2"),
        "anomaly detection": ("", "on"),
        "timm": ("", "1.0"),
        "OMP_NUM_THREADS": ("", "1"),
        "loader workers": ("0", "2"),
    }


# The command.


def compare(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["compare", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_command_tells_timed_runs_apart(session: Path) -> None:
    text = compare(session, session / "01-loader-workers")
    assert text.strip().startswith("B is 1.25× as fast as A")
    assert "6 runs, 101 ms per step" in text
    assert "samples per second" in text
    assert "the first was only timed" in text
    assert "nothing that was recorded" in text


def test_the_command_as_json(session: Path) -> None:
    document = json.loads(compare(session, session / "01-loader-workers", "--format", "json"))
    assert document["speedup"] == pytest.approx(1.25)
    assert document["low"] < 1.25 < document["high"]
    assert document["different"] is True
    assert document["runs"] == [3, 3]
    assert document["a"]["step_ms"] == pytest.approx(100.83, abs=0.01)
    assert document["a"]["findings"] is None
    assert len(document["b"]["runs"]) == 4


@pytest.mark.slow
def test_where_the_time_went_and_what_was_found_of_real_runs(profiled: Callable[..., Profiled], tmp_path: Path) -> None:
    """A real run beside itself, written down as taking twice as long."""
    one = profiled("workers.py").run
    slower = tmp_path / "slower"
    shutil.copytree(one.folder, slower)
    record = asdict(one.record)
    record["timing"]["step_s"] *= 2
    # A step's share of the epochs' starts counts as well, where the time limit let the run come to an epoch's end.
    record["timing"]["aside"] = {name: 2 * seconds for name, seconds in record["timing"]["aside"].items()}
    for loader in record["loaders"]:  # the wait as well: it is part of the step
        loader["wait_s"] = loader["wait_s"] and 2 * loader["wait_s"]
    (slower / "run.json").write_text(json.dumps(record))
    text = compare(one.folder, slower)
    assert "B is slower than A: 0.50×" in text
    document = json.loads(compare(one.folder, slower, "--format", "json"))
    ours, theirs = document["a"]["breakdown_ms"], document["b"]["breakdown_ms"]
    assert sum(ours.values()) == pytest.approx(document["a"]["step_ms"])
    assert theirs == pytest.approx({name: 2 * ms for name, ms in ours.items()})
    assert isinstance(document["a"]["findings"], list)
    for name in ("forward", "backward", "optimizer"):
        assert name in text


def test_findings_that_one_side_has_alone_are_named(tmp_path: Path) -> None:
    one, other = (open_side(run(tmp_path / name, 0.1)) for name in "12")
    vars(one)["findings"] = {"pin-memory": "Pin it", "loader-workers": "Let workers load"}
    vars(other)["findings"] = {"loader-workers": "Let workers load", "compile": "Compile it"}
    result = contrast(one, other)
    assert result.appeared == {"compile": "Compile it"}
    assert result.gone == {"pin-memory": "Pin it"}
    assert json.loads(comparison.encode(result))["findings_appeared"] == {"compile": "Compile it"}
