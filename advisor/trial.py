"""Trials: running versions of the script, and comparing two of them pair by pair.

The unit is the run (see :mod:`advisor.compare`). A trial's first run is a whole one – its trace is the next diagnosis's
evidence –, the others end after the timing window. A run that a killed session has finished is not made again.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from advisor import compare, errors
from advisor.compare import Comparison
from advisor.errors import AdvisorError
from advisor.findings import Measured, Numerics
from advisor.findings import Status as Verdict
from advisor.harness import layout
from advisor.harness.layout import Options, RunRecord
from advisor.launch import Progress, measure, next_try
from advisor.numerics import compare_numerics, not_finite
from advisor.rule import Safety
from advisor.run import Run
from advisor.state import State

# Every run of a session is seeded alike: value i of one run's losses belongs to value i of another's.
SEED = 0
# More pairs than this tell little more: the interval shrinks with their square root.
MOST_PAIRS = 6
LEAST_PAIRS = 3
# A patched script may take this much longer than the unpatched one's run did before it counts as hanging: a fix may
# make it slower, and compiling takes minutes.
_SLOWER, _EXTRA_SECONDS = 4.0, 180.0

Say = Callable[[str], None]


class BudgetError(Exception):
    """The session's time is used up: what is begun is left, what is done counts."""


class TrialError(Exception):
    """A run of the patched script failed; ``kind`` is layout.Failure's."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Version:
    """A state of the script that was run: its whole run, and the options that found its steps."""

    state: State
    run: Run
    options: Options

    @property
    def record(self) -> RunRecord:
        return self.run.record

    @property
    def folder(self) -> Path:
        return self.run.folder


@dataclass(frozen=True)
class Result:
    """What a comparison of two versions came to. Folders are absolute."""

    status: Verdict
    reason: str
    measured: Measured | None = None
    numerics: Numerics | None = None
    before: tuple[Path, ...] = ()
    after: tuple[Path, ...] = ()
    comparison: Comparison | None = None


@dataclass
class Bench:
    """Runs versions of the script within the session's time. ``deadline`` is on time.monotonic's clock."""

    options: Options
    timeout: float | None = None
    deadline: float | None = None
    progress: Progress | None = None
    say: Say = field(default=lambda text: None)
    _last: Path | None = None

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def baseline(self, state: State, folder: Path) -> Version:
        """The script as it is, in full. Raises what :func:`advisor.launch.measure` raises."""
        run = _finished(folder)
        if run is None:
            _make_room(folder)
            run = measure(state.command, folder, self.options, timeout=self.timeout, progress=self.progress)
            self._last = run.folder
        return Version(state, run, options_of(folder, self.options))

    def whole(self, state: State, folder: Path, like: Version) -> Version:
        """A version of the script, in full. Raises TrialError when it fails, BudgetError when time is up."""
        options = replace(self.options, step=like.options.step)
        run = self._run(state, folder, options, like)
        return Version(state, run, options_of(folder, options))

    def again(self, version: Version, folder: Path, like: Version | None = None) -> Run:
        """Another run of a version, until its timing window is full; raises as :meth:`whole` does."""
        # Where the script is short, `measure` finds out anew how long: it then times the steps that a whole run times.
        return self._timed(version.state, folder, replace(version.options, total_steps=0), like or version)

    def quick(self, state: State, folder: Path, like: Version) -> Run:
        """A first, timing-only run of a state of which nothing is known yet; raises as :meth:`whole` does."""
        return self._timed(state, folder, replace(self.options, step=like.options.step), like)

    def _timed(self, state: State, folder: Path, options: Options, like: Version) -> Run:
        run = self._run(state, folder, replace(options, windows="timing"), like)
        # What it wrote anew is in the whole run's folder already: checkpoints of a dozen repeats fill a disk.
        shutil.rmtree(folder / layout.FILES_DIR, ignore_errors=True)
        return run

    def _run(self, state: State, folder: Path, options: Options, like: Version) -> Run:
        run = _finished(folder)
        if run is not None:
            return run
        usual = like.record.wall_s or 0.0
        if self.left < usual:
            raise BudgetError
        _make_room(folder)
        overlay = state.write_overlay(folder / layout.OVERLAY_DIR)
        limit = min(self.timeout or math.inf, _SLOWER * usual + _EXTRA_SECONDS, self.left)
        self._last = folder
        try:
            run = measure(
                state.command, folder, replace(options, overlay=overlay), timeout=limit, progress=self.progress
            )
        except AdvisorError as error:
            if error.exit_status == errors.TIME_LIMIT and self.left <= 1:
                raise BudgetError from None
            failure = _failure_of(folder)
            kind = "timeout" if error.exit_status == errors.TIME_LIMIT else failure.kind if failure else "killed"
            raise TrialError(failure.message if failure and failure.message else str(error), kind) from error
        failure = run.record.failure
        if failure is not None and like.record.failure is None:
            raise TrialError(failure.message, failure.kind)
        return run

    # Comparing.

    def compare(
        self,
        before: Version,
        after: Version,
        folder: Path,
        *,
        safety: Safety,
        min_gain: float,
        first: tuple[Run, Run] | None = None,
    ) -> Result:
        """Run `before` and `after` in alternation until their difference is known well enough, or time is up.

        Repeats go into `folder`. ``first`` names a pair of runs that exist already and were made one after the other.
        """
        runs_before: list[Run] = []
        runs_after: list[Run] = []
        shortage = ""
        if first is not None:
            runs_before.append(first[0])
            runs_after.append(first[1])
        try:
            while not self._enough(runs_before, runs_after, min_gain):
                number = len(runs_after) + 1
                self.say(f"pair {number} of at least {LEAST_PAIRS}")
                one, other = self._pair(before, after, folder, number)
                runs_before.append(one)
                runs_after.append(other)
                wrong = not_finite([run.record for run in runs_before], [run.record for run in runs_after])
                if wrong:
                    break
        except BudgetError:
            shortage = "the time was used up"
        except TrialError as error:
            return self._result("failed", str(error), runs_before, runs_after, safety, min_gain)
        return self._judge(runs_before, runs_after, safety, min_gain, shortage)

    def _pair(self, before: Version, after: Version, folder: Path, number: int) -> tuple[Run, Run]:
        """One run of each, the other way round in every second pair: what drifts favours neither.

        With A B A B and a steady drift of 1.5 % from run to run, simulated sessions of a script against itself told it
        from itself in 7 % of cases, with A B B A in 3 %.
        """

        def first() -> Run:
            return self.again(before, folder / f"{number}-before")

        def second() -> Run:
            return self.again(after, folder / f"{number}-after", like=before)

        if number % 2:
            return first(), second()
        run = second()
        return first(), run

    def _enough(self, before: Sequence[Run], after: Sequence[Run], min_gain: float) -> bool:
        if len(after) < LEAST_PAIRS:
            return False
        return len(after) >= MOST_PAIRS or compare.enough(_comparison(before, after), min_gain)

    def _judge(self, before: list[Run], after: list[Run], safety: Safety, min_gain: float, shortage: str) -> Result:
        if not after:
            return Result("inconclusive", f"{shortage} before anything was measured")
        _, wrong = compare_numerics(safety, [run.record for run in before], [run.record for run in after])
        if wrong:
            return self._result("failed", wrong, before, after, safety, min_gain)
        comparison = _comparison(before, after)
        if len(after) < LEAST_PAIRS:
            reason = f"{shortage} after {len(after)} of at least {LEAST_PAIRS} pairs of runs"
            return self._result("inconclusive", reason, before, after, safety, min_gain)
        status = compare.verdict(comparison, min_gain)
        reason = _reason(status, comparison, min_gain)
        return self._result(status, reason, before, after, safety, min_gain)

    def _result(
        self, status: Verdict, reason: str, before: list[Run], after: list[Run], safety: Safety, min_gain: float
    ) -> Result:
        count = min(len(before), len(after))
        before, after = before[:count], after[:count]
        if not count:
            return Result(status, reason)
        numerics, _ = compare_numerics(safety, [run.record for run in before], [run.record for run in after])
        comparison = _comparison(before, after)
        return Result(
            status,
            reason,
            _measured(comparison, before, after, min_gain, numerics.drift if numerics else None),
            numerics,
            tuple(run.folder for run in before),
            tuple(run.folder for run in after),
            comparison,
        )

    def adjacent(self, version: Version) -> bool:
        """Whether nothing was run since that version's whole run: then it pairs with the next one."""
        return self._last is not None and os.path.realpath(self._last) == os.path.realpath(version.folder)


def _comparison(before: Sequence[Run], after: Sequence[Run]) -> Comparison:
    return compare.compare_pairs(
        [compare.costs(one.record, other.record) for one, other in zip(before, after, strict=True)]
    )


def _measured(
    comparison: Comparison, before: Sequence[Run], after: Sequence[Run], min_gain: float, drift: float | None
) -> Measured:
    return Measured(
        before_ms=_mean_step(before) * 1e3,
        after_ms=_mean_step(after) * 1e3,
        speedup=comparison.speedup,
        low=comparison.low,
        high=comparison.high,
        loss_drift=drift,
        pairs=len(after),
        smallest_gain=comparison.smallest_gain(min_gain),
        before_samples_per_s=throughput(before),
        after_samples_per_s=throughput(after),
    )


def _mean_step(runs: Sequence[Run]) -> float:
    return math.fsum(compare.cost(run.record).step_s for run in runs) / len(runs)


def throughput(runs: Sequence[Run]) -> float | None:
    """Samples per second over runs of one version; None where a run does not know its samples."""
    samples = [run.record.timing.samples_per_step for run in runs]
    if not all(samples):
        return None
    return math.fsum(count for count in samples if count) / math.fsum(compare.cost(run.record).step_s for run in runs)


def _reason(status: str, comparison: Comparison, min_gain: float) -> str:
    if status == "kept":
        return f"measured faster by more than {min_gain:.0%}, with all of its 95 % interval"
    if status == "reverted":
        if comparison.high < 1:
            return "measured slower"
        return f"no gain of {min_gain:.0%}: that much is outside of its 95 % interval"
    least = comparison.smallest_gain(min_gain)
    return (
        f"the runs differ too much among themselves: they could have told a gain of {least - 1:.0%} or more from less "
        f"than {min_gain:.0%}"
    )


# Run folders.


def _finished(folder: Path) -> Run | None:
    """The run that is in `folder` already, if it is a whole one."""
    if not (folder / layout.RUN_JSON).is_file():
        return None
    try:
        run = Run.load(folder)
    except AdvisorError:
        return None
    record = run.record
    # The version is written when the script's files are back. A run that was over too early is followed by a cut one.
    whole = record.advisor and next_try(record, options_of(folder, Options())) is None
    timed = record.timing.step_s is not None and record.steps >= 2
    return run if whole and timed and record.failure is None else None


def _make_room(folder: Path) -> None:
    """Remove what a killed session has left of a run. Its journal must have been seen to before."""
    if not folder.exists():
        return
    if (folder / layout.JOURNAL_DIR / layout.JOURNAL_LOG).exists():
        raise AdvisorError(
            f"{folder} still holds files of yours that could not be put back: see {folder / layout.JOURNAL_DIR}, then "
            "run advisor again."
        )
    shutil.rmtree(folder)


def options_of(folder: Path, fallback: Options) -> Options:
    """The options that the run in `folder` was finally made with: what its steps are, and how many there are."""
    try:
        return msgspec.json.decode((folder / layout.OPTIONS_JSON).read_bytes(), type=Options)
    except (OSError, msgspec.DecodeError):
        return fallback


def _failure_of(folder: Path) -> layout.Failure | None:
    try:
        return Run.load(folder).record.failure
    except AdvisorError:
        return None
