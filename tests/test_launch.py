"""Starting the script's interpreter: what is refused at once, and what its environment holds."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from advisor import endings
from advisor.errors import NO_STEP, SCRIPT_FAILED, USAGE, AdvisorError
from advisor.harness import layout
from advisor.launch import Command, check_script, find_python


@pytest.mark.parametrize(
    "contents",
    [
        b"\xef\xbb\xbf#!/usr/bin/env python\nprint(1)\n",
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        b"print(1)\r\nprint(2)\r\n",
        b"",
    ],
    ids=["mark and shebang", "other encoding", "CRLF", "empty"],
)
def test_every_encoding_of_python_is_accepted(tmp_path: Path, contents: bytes) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(contents)
    check_script(Command(str(script)))


@pytest.mark.parametrize("contents", [b"\x89PNG\r\n\x1a\n\0\0", b"name = '\xe9'\n", b"if x\n", b"(" * 9999])
def test_what_is_not_python_is_refused(tmp_path: Path, contents: bytes) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(contents)
    with pytest.raises(AdvisorError, match=r"is not a Python script.*\.$") as raised:
        check_script(Command(str(script)))
    assert raised.value.exit_status == USAGE and "\n" not in str(raised.value)


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="there is no file"):
        check_script(Command(str(tmp_path / "missing.py")))
    with pytest.raises(AdvisorError, match="is a folder"):
        check_script(Command(str(tmp_path)))


def test_warnings_of_the_compiler_are_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("x = 1\nassert (x, 'always true')\nprint(x is 1)\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_script(Command(str(script)))


def test_interpreter_is_the_one_named_or_the_active_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_python(sys.executable) == sys.executable
    with pytest.raises(AdvisorError, match="no such interpreter"):
        find_python(str(tmp_path / "python"))
    own = tmp_path / "bin" / "python"
    own.parent.mkdir()
    own.symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert find_python(None) == str(own)


def failed(kind: str, message: str) -> layout.RunRecord:
    return layout.RunRecord(failure=layout.Failure(kind=kind, message=message))


@pytest.mark.parametrize(
    "record, status, said",
    [
        (failed("exit", "the script ended itself with sys.exit(7)"), SCRIPT_FAILED, "before two steps"),
        (failed("oom", "DefaultCPUAllocator: can't allocate memory"), SCRIPT_FAILED, "ran out of memory"),
        (failed("exception", "ModuleNotFoundError: No module named 'torch'"), SCRIPT_FAILED, "--python"),
        (failed("exception", "RuntimeError: No CUDA GPUs are available"), SCRIPT_FAILED, "asks for CUDA"),
        (failed("no_room", "OSError: [Errno 28] No space left on device"), USAGE, "--output"),
        (failed("no_module", "there is no module to run: No module named x"), USAGE, "python -m"),
        (layout.RunRecord(), NO_STEP, "never imported torch"),
        (layout.RunRecord(environment=layout.Environment(torch="2.6")), NO_STEP, "0 forwards): have the script"),
        (
            layout.RunRecord(environment=layout.Environment(torch="2.6"), seen={"batches": 40, "forwards": 1}),
            NO_STEP,
            "1 forwards): choose --step loader, or have the script `import advisor` and call `advisor.step()`",
        ),
        (layout.RunRecord(environment=layout.Environment(torch="2.6"), steps=1), NO_STEP, "only one step"),
    ],
)
def test_every_end_has_its_sentence_and_status(
    tmp_path: Path, record: layout.RunRecord, status: int, said: str
) -> None:
    with pytest.raises(AdvisorError) as raised:
        endings.check(record, "python", tmp_path)
    assert raised.value.exit_status == status
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_failure_after_enough_steps_is_a_note(tmp_path: Path) -> None:
    record = failed("exception", "ValueError: late")
    record.steps, record.timing.step_s = 30, 0.01
    endings.check(record, "python", tmp_path)
    assert any("ValueError: late" in note for note in record.notes)


def test_only_the_end_of_a_long_output_is_shown(tmp_path: Path) -> None:
    (tmp_path / layout.OUTPUT_LOG).write_text("x" * 100 + "\n" + "line\n" * 200_000 + "y" * 100_000 + "\nlast\n")
    lines = endings.tail(tmp_path).splitlines()
    assert lines[-1] == "last" and max(map(len, lines)) <= 1000 and len(lines) <= 15


@pytest.mark.parametrize("code, name", [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-40, "40")])
def test_signals_are_named(tmp_path: Path, code: int, name: str) -> None:
    error = endings.died("python", tmp_path, code, 1.0)
    assert error.exit_status == SCRIPT_FAILED and name in str(error)
    assert ("memory" in str(error)) == (code == -9)
