"""Cases run in processes of their own, each result kept: what was interrupted goes on where it was.

A result belongs to the case's files, to the advisor's own and to the versions that ran it; when one of them changes it
is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from advisor.findings import FixDocument
from fixtures.expectations import NOT_THE_SCRIPTS, Case

from .child import Answer, Request, digest

REPO = Path(__file__).resolve().parents[2]
TWIN_SCRIPT = "script_twin.py"  # what the twin is called in the copy, beside the script
# Beside the harness, what launches it and what says how long its windows are.
_MEASURES = ("launch.py", "improve/bench.py")
# What a child may need beyond its script's own limits, to read traces and to try diffs.
_EXTRA_SECONDS = 1800.0

T = TypeVar("T")


class StoppedError(Exception):
    """What was running was ended from outside: there is no result to keep."""


@dataclass(frozen=True)
class Runner:
    """``folder`` holds a folder per case. ``short`` are windows as short as the tests'; limits are seconds.

    With ``stored`` gains are those that were measured before, and none besides.
    """

    folder: Path
    short: bool = False
    timeout: float = 600.0
    stored: bool = False
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def findings(self, case: Case) -> Answer:
        """What the advisor says of a case, and what becomes of its diffs.

        Where only what reads a run has changed since it was measured, the run is diagnosed again, in seconds.
        """
        return self.kept(
            case, "findings", Answer, lambda: self._child(case, "findings"), self._version, str(self.short)
        )

    def gain(self, case: Case, fix: FixDocument | None, whole: bool = False) -> Answer:
        """The script timed beside what `fix` makes of it; beside its twin for None. `whole`: not by its steps alone.

        It is kept for as long as the script and the fix are the same, whatever is predicted of it and found besides.
        """
        name = f"gain-{digest(fix) if fix is not None else 'twin'}"
        name += "-whole" if whole else ""
        if self.stored:
            return self._found(case, name, Answer, _digest([str(versions()), *_texts(case)])) or Answer(0.0)
        return self.kept(case, name, Answer, lambda: self._child(case, "gain", fix, whole), str(versions()))

    def kept(self, case: Case, what: str, kind: type[T], make: Callable[[], T], *key: str) -> T:
        """The result `what` of `case` for this `key`: the one that is stored, else the one that `make` makes.

        A case that could not be profiled is tried again the next time; what a peer could not do, it will not.

        Raises StoppedError when that was interrupted.
        """
        stored = self.place(case) / f"{what}.json"
        digest = _digest([*key, *_texts(case)])
        found = self._found(case, what, kind, digest)
        if found is not None:
            return found
        result = make()
        if self.stopped.is_set():
            raise StoppedError
        if isinstance(result, Answer) and result.error:
            return result  # a time limit, on a busy machine: the next attempt may do better
        stored.parent.mkdir(parents=True, exist_ok=True)
        partial = stored.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode({"key": digest, "result": result}))
        partial.replace(stored)
        return result

    def _found(self, case: Case, what: str, kind: type[T], digest: str) -> T | None:
        """What is stored under this digest of its key; None where nothing is, or another one's."""
        try:
            entry = msgspec.json.decode((self.place(case) / f"{what}.json").read_bytes(), type=dict[str, msgspec.Raw])
            if msgspec.json.decode(entry["key"]) == digest:
                return msgspec.json.decode(entry["result"], type=kind)
        except (OSError, KeyError, msgspec.DecodeError):
            pass
        return None

    def place(self, case: Case) -> Path:
        return self.folder / case.name

    def copy(self, case: Case, name: str = "script") -> Path:
        """The case's files in a folder of their own, as their author has them, and the twin under another name."""
        copy = self.place(case) / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(case.folder, copy, ignore=shutil.ignore_patterns(*NOT_THE_SCRIPTS))
        return copy

    @cached_property
    def _version(self) -> str:
        return f"{source_digest()} {versions()}"

    @cached_property
    def _measuring(self) -> str:
        return f"{measuring_digest()} {versions()}"

    def _child(self, case: Case, task: str, fix: FixDocument | None = None, whole: bool = False) -> Answer:
        folder = self.place(case) / task
        if task != "findings":  # the child looks itself whether what is there serves again
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        copy = self.copy(case, f"{task}/script")
        twin = copy / TWIN_SCRIPT
        if task == "gain" and fix is None:
            shutil.copy(case.twin, twin)
        request = Request(
            task=task,
            copy=str(copy),
            script=str(copy / "script.py"),
            folder=str(folder),
            args=list(case.args),
            short=self.short,
            timeout=self.timeout,
            fix=fix,
            whole=whole,
            twin=str(twin),
            trace=str(case.recorded or ""),
            key=_digest([self._measuring, str(self.short), *_texts(case)]),
        )
        asked, answered = folder / "request.json", folder / "answer.json"
        answered.unlink(missing_ok=True)
        asked.write_bytes(msgspec.json.encode(request))
        status, said = self.run(
            [sys.executable, "-m", "tests.accuracy.child", str(asked), str(answered)],
            cwd=REPO,
            timeout=self.timeout + _EXTRA_SECONDS,
        )
        if not answered.exists():
            return Answer(0.0, f"the child ended with status {status}: {said[-2000:]}")
        return msgspec.json.decode(answered.read_bytes(), type=Answer)

    def run(
        self, command: list[str], cwd: Path, timeout: float, environment: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """A command's exit status (negative: a signal) and what it printed; ended after `timeout` seconds.

        It has a session of its own, so that it is ended with all that it started.
        """
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._end(process, signal.SIGTERM)
            try:
                said, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self._end(process, signal.SIGKILL)
                said, _ = process.communicate()
        finally:
            self.processes.remove(process)
        return process.returncode, said.decode(errors="replace")

    def interrupt(self) -> None:
        """End what is running, by SIGTERM, on which the advisor puts files back; nothing more is kept."""
        self.stopped.set()
        for process in list(self.processes):
            self._end(process, signal.SIGTERM)

    @staticmethod
    def _end(process: subprocess.Popen[bytes], number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def source_digest() -> str:
    """A digest of the advisor's own sources: between two versions they change without the number changing."""
    files = [path for room in ("advisor", "rules") for path in sorted((REPO / room).rglob("*.py"))]
    return _sources([*files, Path(__file__).with_name("child.py")])


def measuring_digest() -> str:
    """A digest of those sources that a recorded run depends on: what runs and records the script."""
    files = sorted((REPO / "advisor" / "harness").rglob("*.py"))
    return _sources([*files, *(REPO / "advisor" / name for name in _MEASURES)])


def _sources(files: Iterable[Path]) -> str:
    return _digest([part for path in files for part in (str(path.relative_to(REPO)), path.read_text())])


def versions() -> dict[str, str]:
    """What the cases run with."""
    found = {"Python": platform.python_version()}
    for name in ("advisor", "torch", "transformers", "lightning", "accelerate"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _texts(case: Case) -> list[str]:
    """Everything in the case's folder but what it expects, and its trace: judging anew needs no new run."""
    files = sorted(path for path in case.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    parts = [" ".join(case.args)]
    if case.recorded is not None:
        within = sorted(case.recorded.rglob("*")) if case.recorded.is_dir() else [case.recorded]
        parts += [case.trace, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in within)]
    for path in files:
        if path.name != "expect.toml":
            parts += [str(path.relative_to(case.folder)), hashlib.sha256(path.read_bytes()).hexdigest()]
    return parts


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
