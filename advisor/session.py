"""``Session``: the folder of one ``advisor profile``: its runs, its findings, its patch, and what can be resumed."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import AdvisorError
from advisor.findings import FindingDocument, Findings, Measured, Trial
from advisor.launch import Command

BASELINE = "baseline"
FINAL = "final"
PAIRS = "pairs"
SESSION_JSON = "session.json"
TRIALS_JSON = "trials.json"
PATCH = "fixes.patch"
LOCK = "session.lock"
KILLED = ".killed-"  # in the names of what killed runs have left, where that may be the user's


class Settings(msgspec.Struct, frozen=True):
    """``session.json``: what was asked for. Times are seconds; ``min_gain`` is a share (0.02 = 2 %).

    ``runs`` of the unpatched script are made in all; ``against`` is an earlier session to compare with, ``fail_on``
    what must not have changed since (:mod:`advisor.gate`). ``rules`` are folders with rules of the user's own.
    """

    script: str
    module: bool = False
    argv: list[str] = []
    python: str = ""
    cwd: str = "."
    step: str = "auto"
    skip: int = 0
    timeout: float | None = None
    accept: str = "none"
    budget: float | None = None
    min_gain: float = 0.02
    runs: int = 1
    against: str | None = None
    fail_on: str | None = None
    rules: list[str] = []

    @property
    def command(self) -> Command:
        return Command(script=self.script, argv=tuple(self.argv), module=self.module, python=self.python, cwd=self.cwd)


class Attempt(msgspec.Struct, frozen=True):
    """What resuming needs to know of one trial, beyond what the report shows.

    ``place`` names the rule and where its fix goes, ``fix`` the very change. ``kept_before`` counts the fixes
    that were kept when it was tried; ``final`` says that this change is never tried again. ``argv`` and
    ``environment`` are the patched script's.
    """

    number: int
    place: str
    fix: str
    kept_before: int
    finding: FindingDocument
    final: bool = False
    done: bool = False
    argv: list[str] = []
    environment: dict[str, str] = {}


class Direct(msgspec.Struct, frozen=True):
    """The script as it was beside the one with the first ``kept`` fixes: runs by folder, pair by pair.

    ``failure`` says what went wrong with all of them together, where something did.
    """

    kept: int
    measured: Measured | None = None
    before: list[str] = []
    after: list[str] = []
    failure: str = ""


class Progress(msgspec.Struct):
    """``trials.json``: how far the session is. ``files`` are digests of the user's files that fixes were made from.

    ``ended`` says why it ended; empty while it has not.
    """

    trials: list[Trial] = []
    attempts: list[Attempt] = []
    declined: list[str] = []
    files: dict[str, str] = {}
    seconds: float = 0.0
    accept: str = ""  # where an answer has changed what was asked for
    direct: Direct | None = None
    ended: str = ""


@dataclass(frozen=True)
class Session:
    """One session's folder. Trials, beside ``baseline``, are runs as well."""

    folder: Path
    settings: Settings

    @classmethod
    def create(cls, settings: Settings, output: Path) -> Session:
        """A new folder ``<script>-<n>`` below `output`, with what was asked for in it.

        Raises AdvisorError when it cannot be made.
        """
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", settings.command.name) or "script"
        try:
            output.mkdir(parents=True, exist_ok=True)
            ignore = output / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            matches = (re.fullmatch(rf"{re.escape(name)}-(\d+)", path.name) for path in output.iterdir())
            number = max((int(match[1]) for match in matches if match), default=0) + 1
            while True:  # another session may start at the same moment
                folder = output / f"{name}-{number}"
                try:
                    folder.mkdir()
                    break
                except FileExistsError:
                    number += 1
            session = cls(folder.resolve(), settings)
            session._store(SESSION_JSON, settings)
        except OSError as error:
            raise _unwritable(output, error) from error
        return session

    @classmethod
    def open(cls, folder: Path) -> Session:
        """The session in `folder`. Raises AdvisorError when there is none, or it is damaged."""
        path = folder / SESSION_JSON
        try:
            settings = msgspec.json.decode(path.read_bytes(), type=Settings)
        except FileNotFoundError:
            raise AdvisorError(
                f"{folder} holds no {SESSION_JSON}: name the folder of a session that `advisor profile` made."
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise AdvisorError(f"{path} cannot be read ({error}): start a new session.") from error
        return cls(folder.resolve(), settings)

    def changed(self, accept: str | None, budget: float | None, min_gain: float | None) -> Session:
        """This session with other settings for what is left to do; None leaves one as it was.

        A session that had ended goes on when told to accept other fixes, or given more time.
        """
        asked = {"accept": accept, "budget": budget, "min_gain": min_gain}
        new = {name: value for name, value in asked.items() if value is not None}
        if not new:
            return self
        progress = self.progress()
        progress.ended = ""
        if accept is not None:
            progress.accept = ""
            progress.declined = []
            # What was begun under the old answer is not gone on with: it may not be wanted any more.
            progress.attempts = [attempt for attempt in progress.attempts if attempt.done]
        session = Session(self.folder, msgspec.structs.replace(self.settings, **new))
        session.store(progress)
        session._store(SESSION_JSON, session.settings)
        return session

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other ``advisor`` off this session meanwhile. Raises AdvisorError when one is at it."""
        with (self.folder / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AdvisorError(f"another advisor is at work on {self.folder}: wait for it, or end it.") from None
            except OSError:
                pass  # a file system without locks
            yield

    @property
    def baseline_dir(self) -> Path:
        return self.folder / BASELINE

    def trial_dir(self, number: int, rule: str) -> Path:
        return self.folder / f"{number:02d}-{rule}"

    def progress(self) -> Progress:
        """How far it came; nothing done yet where there is no such file. Raises AdvisorError when it is damaged."""
        path = self.folder / TRIALS_JSON
        try:
            return msgspec.json.decode(path.read_bytes(), type=Progress)
        except FileNotFoundError:
            return Progress()
        except (OSError, msgspec.DecodeError) as error:
            raise AdvisorError(f"{path} cannot be read ({error}): start a new session.") from error

    def store(self, progress: Progress) -> None:
        """Write ``trials.json``: whole or not at all. Raises AdvisorError when the folder cannot be written."""
        try:
            self._store(TRIALS_JSON, progress)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _store(self, name: str, what: Any) -> None:
        partial = self.folder / f".{name}.partial"
        with partial.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(what), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.folder / name)

    def write_patch(self, document: Findings, kept: bytes | None = None) -> Path | None:
        """``fixes.patch``: the fixes kept, as one patch; where none was tried, all proposed diffs one after another.

        Each of the proposed ones alone applies with ``git apply``.
        """
        path = self.folder / PATCH
        if document.outcome is not None:
            contents = kept or b""
        else:
            edits = [finding for finding in document.findings if finding.fix.diff]
            parts = [f"# {finding.rank}. {finding.title}\n{finding.fix.diff}" for finding in edits]
            # Bytes: a diff of a file with CRLF line ends must keep them.
            contents = "\n".join(parts).encode("utf-8", "surrogateescape")
        if not contents:
            path.unlink(missing_ok=True)
            return None
        try:
            partial = path.with_name(f".{PATCH}.partial")
            partial.write_bytes(contents)
            partial.replace(path)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return path


def _unwritable(folder: Path, error: OSError) -> AdvisorError:
    return AdvisorError(
        f"the folder {folder} cannot be written ({error.strerror or error}): choose another with --output."
    )
