"""Which files are the user's: never our own, by whatever way they are reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import advisor

ASK = (
    "import advisor.harness.places as places; from advisor.harness.undo.journal import __file__ as ours; "
    "print(places.is_user_file(ours), places.is_user_file(__import__('sys').argv[1]))"
)


def test_our_own_files_behind_a_link_are_not_the_users(tmp_path: Path) -> None:
    (tmp_path / "advisor").symlink_to(Path(advisor.__file__).parent)
    script = tmp_path / "train.py"
    script.touch()
    command = [sys.executable, "-c", ASK, str(script)]
    answer = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.split() == ["False", "True"], answer.stderr


def test_what_pip_installed_into_a_folder_of_its_own_is_not_the_users(tmp_path: Path) -> None:
    """``pip install --target``: on the path, and nowhere near a site-packages."""
    libraries, work = tmp_path / "libraries", tmp_path / "work"
    (libraries / "words").mkdir(parents=True)
    (libraries / "words-1.0.dist-info").mkdir()
    (work / "parts-1.0.dist-info").mkdir(parents=True)  # beside the script, whose own files stay its own
    (work / "vendor" / "graphs-1.0.dist-info").mkdir(parents=True)  # the nearest folder decides
    ask = "import sys; from advisor.harness.places import is_user_file; print(*map(is_user_file, sys.argv[1:]))"
    installed = [libraries / "words" / "stem.py", work / "vendor" / "graphs.py"]
    asked = [*installed, work / "parts" / "net.py", tmp_path / "net.py"]
    path = (Path(advisor.__file__).parents[1], libraries, work, work / "vendor")
    answer = subprocess.run(
        [sys.executable, "-c", ask, *map(str, asked)],
        cwd=work,
        env={"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout.split() == ["False", "False", "True", "True"], answer.stderr


def test_a_script_that_empties_its_arguments_still_has_files() -> None:
    code = (
        "import sys; from advisor.harness.places import is_user_file; sys.argv.clear(); sys.path.append(b'/x'); "
        "print(is_user_file('/nowhere/net.py'))"
    )
    root = str(Path(advisor.__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": root}, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.split() == ["True"], answer.stderr
