"""``Bench``: runs versions of the script within the session's time, each into a folder of its own.

A run that a killed session has finished is not made again, if it was of the very same version.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from advisor import errors
from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import Options, RunRecord
from advisor.improve.state import State
from advisor.launch import Progress, measure, next_try, training_of
from advisor.restore import EARLIER_DIR
from advisor.run import Run
from advisor.session import KILLED

# Every run of a session is seeded alike: value i of one run's losses belongs to value i of another's.
SEED = 0
VERSION_JSON = "version.json"  # in the overlay's folder: which version of the script the run is of
# A patched script may take this much longer than the unpatched one's run did before it counts as hanging: a fix may
# make it slower, and compiling takes minutes.
_SLOWER, _EXTRA_SECONDS = 4.0, 180.0
# What repeats wrote anew is kept up to this size: checkpoints of a dozen of them would fill a disk.
_KEPT_BYTES = 64 << 20
# A run that ended longer ago than this is no neighbour of the next one: the machine may have changed meanwhile.
_NEIGHBOUR_SECONDS = 60.0

Say = Callable[[str], None]


class BudgetError(Exception):
    """The session's time is used up: what is begun is left, what is done counts."""


class TrialError(Exception):
    """A run of the patched script failed by its own doing; ``kind`` is layout.Failure's."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Version:
    """A state of the script that was run: its whole run, and the options that found its steps."""

    state: State
    run: Run
    options: Options

    @classmethod
    def of(cls, state: State, run: Run, options: Options) -> Version:
        """The version whose state knows the script's own modules, and the settings files that it was seen to read."""
        sources = state.sources.with_files(run.record.settings, run.record.modules)
        return cls(replace(state, sources=sources), run, options)

    @property
    def record(self) -> RunRecord:
        return self.run.record

    @property
    def folder(self) -> Path:
        return self.run.folder


@dataclass
class Bench:
    """Runs versions of the script. ``deadline`` is on time.monotonic's clock.

    ``check`` is called before each run and raises when a file of the user's has changed: runs of the script before and
    after such a change cannot be compared.
    """

    options: Options
    timeout: float | None = None
    deadline: float | None = None
    progress: Progress | None = None
    say: Say = field(default=lambda text: None)
    check: Callable[[], None] = field(default=lambda: None)
    _last: Path | None = None
    _last_ended: float = 0.0

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def baseline(self, state: State, folder: Path) -> Version:
        """The script as it is, in full. Raises what :func:`advisor.launch.measure` raises."""
        run = _finished(folder, state)
        if run is None:
            _make_room(folder)
            state.write_overlay(folder / layout.OVERLAY_DIR)
            _write_version(folder, state)
            limit = min(self.timeout or math.inf, max(self.left, 1.0))
            run = self._measure(state, folder, self.options, limit)
        return Version.of(state, run, options_of(folder, self.options))

    def whole(self, state: State, folder: Path, like: Version) -> Version:
        """A version of the script, in full.

        Raises TrialError when it fails, BudgetError when time is up, AdvisorError for what is not the script's fault.
        """
        options = replace(self.options, step=like.options.step, training=training_of(like.record))
        run = self._run(state, folder, options, like)
        return Version.of(state, run, options_of(folder, options))

    def again(self, version: Version, folder: Path, like: Version | None = None) -> Run:
        """Another run of a version, until its timing window is full; raises as :meth:`whole` does."""
        # Where the script is short, `measure` finds out anew how long: it then times the steps that a whole run times.
        options = replace(version.options, total_steps=0, training=training_of(version.record))
        return self._timed(version.state, folder, options, like or version)

    def quick(self, state: State, folder: Path, like: Version) -> Run:
        """A first, timing-only run of a state of which nothing is known yet; raises as :meth:`whole` does."""
        options = replace(self.options, step=like.options.step, training=training_of(like.record))
        return self._timed(state, folder, options, like)

    def neighbour(self, version: Version) -> bool:
        """Whether that version's whole run was the last one made, just now: then it pairs with the next one."""
        if self._last is None or time.monotonic() - self._last_ended > _NEIGHBOUR_SECONDS:
            return False
        return os.path.realpath(self._last) == os.path.realpath(version.folder)

    def _timed(self, state: State, folder: Path, options: Options, like: Version) -> Run:
        run = self._run(state, folder, replace(options, windows="timing"), like)
        files = folder / layout.FILES_DIR
        if _size(files) > _KEPT_BYTES:
            shutil.rmtree(files, ignore_errors=True)
        return run

    def _run(self, state: State, folder: Path, options: Options, like: Version) -> Run:
        run = _finished(folder, state)
        if run is None:
            usual = like.record.wall_s or 0.0
            if self.left < usual:
                raise BudgetError
            self.check()
            _make_room(folder)
            overlay = state.write_overlay(folder / layout.OVERLAY_DIR)
            _write_version(folder, state)
            limit = min(self.timeout or math.inf, _SLOWER * usual + _EXTRA_SECONDS, self.left)
            try:
                run = self._measure(state, folder, replace(options, overlay=overlay), limit)
            except AdvisorError as error:
                if error.exit_status == errors.TIME_LIMIT and self.left <= 1:
                    raise BudgetError from None
                raise _of_the_script(error, folder, limit) from error
        if training_of(run.record) != training_of(like.record):
            raise TrialError("its steps end with another optimizer than those that it would be compared with", "steps")
        failure = run.record.failure
        if failure is not None and like.record.failure is None:
            raise TrialError(failure.message, failure.kind)
        return run

    def _measure(self, state: State, folder: Path, options: Options, limit: float) -> Run:
        try:
            timeout = limit if math.isfinite(limit) else None
            return measure(state.command, folder, options, timeout=timeout, progress=self.progress)
        finally:
            self._last, self._last_ended = folder, time.monotonic()


def _of_the_script(error: AdvisorError, folder: Path, limit: float) -> Exception:
    """A TrialError where the patched script is to blame; a full disk, say, stays the error that it is."""
    failure = _failure_of(folder)
    if error.exit_status == errors.TIME_LIMIT:
        return TrialError(f"it was not through after {limit:.0f} s", "timeout")
    if failure is not None and failure.kind not in ("", "no_room", "interrupt", "no_module"):
        return TrialError(failure.message or str(error), failure.kind)
    if error.exit_status in (errors.SCRIPT_FAILED, errors.NO_STEP):
        return TrialError(str(error), "killed")
    return error


# Run folders ---------------------------------------------------------------------------------------------------------


def options_of(folder: Path, fallback: Options) -> Options:
    """The options that the run in `folder` was finally made with: what its steps are, and how many there are."""
    try:
        return msgspec.json.decode((folder / layout.OPTIONS_JSON).read_bytes(), type=Options)
    except (OSError, msgspec.DecodeError):
        return fallback


def _finished(folder: Path, state: State) -> Run | None:
    """The run that is in `folder` already, if it is a whole one, and of this version of the script."""
    if not (folder / layout.RUN_JSON).is_file() or _read_version(folder) != state.fingerprint:
        return None
    try:
        run = Run.load(folder)
    except AdvisorError:
        return None
    record = run.record
    # The version is written when the script's files are back. A run that was over too early is followed by a cut one.
    whole = record.advisor and next_try(record, options_of(folder, Options())) is None
    return run if whole and record.timing.step_s is not None and record.steps >= 2 else None


def _write_version(folder: Path, state: State) -> None:
    path = folder / layout.OVERLAY_DIR / VERSION_JSON
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state.fingerprint, indent=2) + "\n")


def _read_version(folder: Path) -> object:
    try:
        return json.loads((folder / layout.OVERLAY_DIR / VERSION_JSON).read_bytes())
    except (OSError, ValueError):
        return None


def _make_room(folder: Path) -> None:
    """Remove what a killed session has left of a run; set it aside where it holds what may be its user's."""
    if not folder.exists():
        return
    if (folder / layout.JOURNAL_DIR / layout.JOURNAL_LOG).exists():
        raise AdvisorError(
            f"{folder} still holds files of yours that could not be put back: see {folder / layout.JOURNAL_DIR}, then "
            "run advisor again."
        )
    if (folder / EARLIER_DIR).exists() or _size(folder / layout.FILES_DIR):
        number = 1
        while folder.with_name(f"{folder.name}{KILLED}{number}").exists():
            number += 1
        folder.rename(folder.with_name(f"{folder.name}{KILLED}{number}"))
        return
    shutil.rmtree(folder)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) if folder.is_dir() else 0


def _failure_of(folder: Path) -> layout.Failure | None:
    try:
        return Run.load(folder).record.failure
    except AdvisorError:
        return None
