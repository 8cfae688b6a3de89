"""Which files are the user's: never our own, by whatever way they are reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import advisor

ASK = (
    "import advisor.harness.places as places; from advisor.harness.journal import __file__ as ours; "
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
