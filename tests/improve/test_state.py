"""The script with the fixes kept so far, which exists only in memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor.edit import Drafts, Sources
from advisor.errors import AdvisorError
from advisor.improve.state import State, with_options
from advisor.improve.write import write
from advisor.launch import Command
from advisor.rule import Advice, Argument, Variable

SCRIPT = "# -*- coding: latin-1 -*-\nname = 'caf\xe9'\r\nsize = 1\nworkers = 0\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(SCRIPT.encode("latin-1"))
    return path


def edited(state: State, path: Path, old: str, new: str) -> State:
    """The state with one more edit: the expression `old` becomes `new`."""
    import libcst as cst

    drafts = Drafts(state.sources)
    draft = drafts[str(path)]
    (node,) = [node for node in draft.nodes(cst.Assign) if draft.code(node).startswith(old)]
    draft.replace(node.value, new)
    edit = drafts.edit("a change")
    assert edit is not None
    return state.apply(edit)


@pytest.mark.parametrize(
    ("argv", "options", "expected"),
    [
        (["--lr", "1"], {"--batch-size": "64"}, ["--lr", "1", "--batch-size", "64"]),
        (["--batch-size", "32", "x"], {"--batch-size": "64"}, ["--batch-size", "64", "x"]),
        (["--batch-size=32", "x"], {"--batch-size": "64"}, ["--batch-size=64", "x"]),
        (["--amp"], {"--amp": ""}, ["--amp"]),
        ([], {"--amp": ""}, ["--amp"]),
        (["--batch-size-eval", "8"], {"--batch-size": "64"}, ["--batch-size-eval", "8", "--batch-size", "64"]),
        (["--n", "1", "--n", "2"], {"--n": "3"}, ["--n", "1", "--n", "3"]),
        (["--lr", "1", "--", "x"], {"--n": "3"}, ["--lr", "1", "--n", "3", "--", "x"]),
    ],
)
def test_options_replace_what_is_there(argv: list[str], options: dict[str, str], expected: list[str]) -> None:
    assert with_options(argv, options) == tuple(expected)


def test_edits_stack_and_the_patch_is_against_the_disk(script: Path) -> None:
    state = State(Command(str(script)))
    state = edited(edited(state, script, "size", "2"), script, "workers", "4")
    assert state.edit is not None
    diff = state.edit.diff_bytes(str(script.parent))
    assert b"-size = 1\n-workers = 0\n+size = 2\n+workers = 4\n" in diff
    (script.parent / "fixes.patch").write_bytes(diff)
    subprocess.run(["git", "apply", "fixes.patch"], cwd=script.parent, check=True)
    assert script.read_bytes() == state.edit.contents[str(script)]


def test_a_later_diff_is_against_the_patched_source(script: Path) -> None:
    first = edited(State(Command(str(script))), script, "size", "2")
    second = edited(first, script, "workers", "4")
    assert "-workers = 0\n+workers = 4\n" in second.diff_from(first, str(script.parent))
    assert "size = 1" not in second.diff_from(first, str(script.parent))


def test_an_edit_undone_by_another_is_no_change(script: Path) -> None:
    state = edited(edited(State(Command(str(script))), script, "size", "2"), script, "size", "1")
    assert state.edit is None


def test_a_state_survives_the_process_that_made_it(script: Path, tmp_path: Path) -> None:
    state = edited(State(Command(str(script))), script, "size", "2")
    overlay = state.write_overlay(tmp_path / "overlay")
    again = State.restored(state.command, overlay)
    assert again.edit is not None and state.edit is not None
    assert again.edit.contents == state.edit.contents
    assert again.sources.text(str(script)) == state.sources.text(str(script))
    assert script.read_bytes() == SCRIPT.encode("latin-1")


def test_arguments_and_variables_make_the_command_to_run(script: Path) -> None:
    original = State(Command(str(script), argv=("--lr", "1"), cwd=str(script.parent)))
    state = original.apply(Argument({"--batch-size": "64"})).apply(Variable({"OMP_NUM_THREADS": "2"}))
    assert state.invocation(original.command) == "OMP_NUM_THREADS=2 python train.py --lr 1 --batch-size 64"
    assert original.invocation(original.command) == ""


def test_advice_cannot_be_tried(script: Path) -> None:
    with pytest.raises(AdvisorError, match="advice"):
        State(Command(str(script))).apply(Advice("Buy a GPU."))


# Writing.


def test_what_was_kept_is_written_with_its_mode_and_through_links(script: Path, tmp_path: Path) -> None:
    script.chmod(0o754)
    link = tmp_path / "link.py"
    link.symlink_to("train.py")
    state = edited(State(Command(str(link))), link, "size", "2")
    assert state.edit is not None
    assert write(state.edit) == [str(link)]
    assert link.is_symlink()
    assert script.read_bytes() == SCRIPT.replace("size = 1", "size = 2").encode("latin-1")
    assert script.stat().st_mode & 0o777 == 0o754
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "train.py"]


def test_nothing_is_written_when_a_file_was_changed_since(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "data.py"
    other.write_text("size = 1\n")
    state = edited(edited(State(Command(str(script))), script, "size", "2"), other, "size", "2")
    script.write_text("mine = True\n")
    assert state.edit is not None
    with pytest.raises(AdvisorError, match=r"train\.py was changed since it was read: nothing was written; .*fixes"):
        write(state.edit, tmp_path / "fixes.patch")
    assert script.read_text() == "mine = True\n"
    assert other.read_text() == "size = 1\n"


def test_nothing_is_written_when_a_file_is_gone(script: Path) -> None:
    state = edited(State(Command(str(script))), script, "size", "2")
    script.unlink()
    assert state.edit is not None
    with pytest.raises(AdvisorError, match="cannot be read any more"):
        write(state.edit)


def test_sources_given_are_those_that_edits_see(script: Path) -> None:
    assert Sources({str(script): "a = 1\n"}).text(str(script)) == "a = 1\n"


def test_versions_are_told_apart_by_what_would_run(script: Path) -> None:
    state = State(Command(str(script)))
    assert state.fingerprint == State(Command(str(script))).fingerprint
    others = [
        edited(state, script, "size", "2"),
        state.apply(Argument({"--workers": "2"})),
        state.apply(Variable({"OMP_NUM_THREADS": "2"})),
    ]
    assert all(other.fingerprint != state.fingerprint for other in others)


def test_one_file_under_two_names_is_not_written(script: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to("train.py")
    state = edited(edited(State(Command(str(script))), script, "size", "2"), link, "workers", "2")
    assert state.edit is not None
    with pytest.raises(AdvisorError, match="one file"):
        write(state.edit)
    assert script.read_bytes() == SCRIPT.encode("latin-1")
