"""An edit's diff is one that git takes, whatever the file looks like."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.calls import set_argument
from advisor.edit.locate import call_at
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

SCRIPT = "# -*- coding: utf-8 -*-\nx = 1\n\n\nloader = DataLoader(ds)  # größe\nprint(loader)\n"


def edit_of(path: Path):
    drafts = Drafts(Sources())
    draft = drafts[str(path)]
    call = call_at(draft, Site(str(path), 5), ("DataLoader",))
    assert call is not None
    set_argument(draft, call, "num_workers", "2")
    edit = drafts.edit("two workers")
    assert edit is not None
    return edit


def git_apply(patch: bytes, root: Path) -> None:
    result = subprocess.run(
        ["git", "apply", "-"], input=patch, cwd=root, capture_output=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SCRIPT.encode(), id="plain"),
        pytest.param(SCRIPT.replace("print(loader)\n", "").rstrip("\n").encode(), id="no newline at the end"),
        pytest.param(SCRIPT.replace("\n", "\r\n").encode(), id="crlf"),
        pytest.param(SCRIPT.replace("\n", "\r\n").rstrip("\r\n").encode(), id="crlf, no newline at the end"),
        pytest.param(b"\xef\xbb\xbf" + SCRIPT.encode(), id="byte order mark"),
        pytest.param(SCRIPT.replace("utf-8", "latin-1").encode("latin-1"), id="latin-1"),
        pytest.param(SCRIPT.replace("x = 1\n", "x = 1\x0c\n").encode(), id="form feed"),
        pytest.param(SCRIPT.replace("x = 1\n\n", "x = '''\r\n'''\n").encode(), id="mixed line ends"),
    ],
)
@pytest.mark.parametrize("name", ["train.py", "sub/my train.py", "größe.py"])
def test_diff_applies_and_gives_the_edited_bytes(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    edit = edit_of(path)
    git_apply(edit.diff_bytes(str(tmp_path)), tmp_path)
    assert path.read_bytes() == edit.contents[str(path)]
    assert path.read_bytes() == data.replace(b"DataLoader(ds)", b"DataLoader(ds, num_workers=2)")


def test_text_diff_equals_the_bytes_for_utf8(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    edit = edit_of(path)
    assert edit.diff(str(tmp_path)).encode() == edit.diff_bytes(str(tmp_path))
    assert edit.diff(str(tmp_path)).startswith("--- a/train.py\n+++ b/train.py\n@@ ")


def test_an_edit_of_an_edited_text_diffs_against_that_text(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    first = edit_of(path)
    drafts = Drafts(Sources().patched(first.texts))
    draft = drafts[str(path)]
    call = call_at(draft, Site(str(path), 5), ("DataLoader",))
    assert call is not None
    set_argument(draft, call, "pin_memory", "True")
    second = drafts.edit("pinned")
    assert second is not None
    assert "-loader = DataLoader(ds, num_workers=2)  # größe" in second.diff(str(tmp_path))
    assert "+loader = DataLoader(ds, num_workers=2, pin_memory=True)" in second.diff(str(tmp_path))


def test_library_code_is_never_edited(tmp_path: Path) -> None:
    path = tmp_path / "site-packages" / "trainer.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    drafts = Drafts(Sources())
    draft = drafts[str(path)]
    call = call_at(draft, Site(str(path), 5), ("DataLoader",))
    assert call is not None
    set_argument(draft, call, "num_workers", "2")
    assert drafts.edit("two workers") is None


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="cannot read"):
        Sources().text(str(tmp_path / "gone.py"))


def test_a_file_that_is_no_python_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def (:\n")
    with pytest.raises(AdvisorError, match="does not parse"):
        Drafts(Sources())[str(path)]
