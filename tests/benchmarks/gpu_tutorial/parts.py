"""The parts of the benchmark, each measured and stored by itself: the loop, the stages by hand, the two as a pair."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from advisor import compare
from advisor.errors import AdvisorError
from advisor.findings import Findings
from advisor.harness.layout import Options
from advisor.improve.bench import SEED, options_of
from advisor.launch import Command, measure
from advisor.profile import Talk, profile, resume
from advisor.run import Run
from advisor.session import Settings

from .figures import Machine, Row, epoch_rate, row_of

REPO = Path(__file__).resolve().parents[3]
ORIGINAL = REPO / "fixtures" / "cifar_resnet.py"
BY_HAND = Path(__file__).with_name("by_hand.py")
STAGES = (
    "as it is",
    "loader workers",
    "pinned memory, non-blocking copies",
    "larger batch",
    "uint8 copies",
    "autocast, still larger batch",
    "torch.compile",
)
LARGER_BATCH, AUTOCAST = 3, 5
# A batch is halved so many times, or the workers, before a stage counts as one that this machine cannot run.
_SMALLER = 4
_PAIRS = 3


@dataclass(frozen=True)
class Asked:
    """What to measure. ``budget`` is seconds per part, ``folder`` where runs and the parts' results go.

    The harness ends each run when it has measured, so that ``epochs`` only have to be plenty.
    """

    folder: Path
    budget: float
    python: str
    image_size: int = 224
    images: int = 10_000
    epochs: int = 100
    rounds: int = 3
    batches: tuple[int, int, int] = (32, 512, 1024)  # to begin with, from stage 3, from stage 5
    workers: int | None = None
    accept: str = "all"
    options: Options = field(default_factory=Options)
    say: Callable[[str], None] = print

    @property
    def argv(self) -> list[str]:
        words = {"--image-size": self.image_size, "--images": self.images, "--epochs": self.epochs}
        if self.batches[0] != 32:
            words["--batch-size"] = self.batches[0]
        return [word for name, value in words.items() for word in (name, str(value))]


class Last(msgspec.Struct, frozen=True):
    """The script with all that the loop has kept: patched texts by path in the repository, arguments, variables."""

    argv: list[str]
    environment: dict[str, str] = {}
    files: dict[str, str] = {}


class LoopPart(msgspec.Struct, frozen=True):
    """The loop's result; ``rows`` are the script as it is and after each kept fix."""

    machine: Machine
    document: Findings
    rows: list[Row]
    last: Last
    runs: list[str] = []  # folders of the rows' runs, relative to the part's folder


class HandPart(msgspec.Struct, frozen=True):
    """The stages by hand, in order; ``argv`` is what each was run with."""

    machine: Machine
    rows: list[Row]
    argv: list[list[str]]
    runs: list[str] = []
    seconds: float = 0.0


class Duel(msgspec.Struct, frozen=True):
    """The best stage by hand and the loop's last version in alternation: costs (by hand, loop), pair by pair.

    ``epoch_rates`` are samples per second with the epochs' starts counted, by hand and of the loop.
    """

    machine: Machine
    stage: int
    costs: list[tuple[float, float]]
    epoch_rates: list[tuple[float | None, float | None]] = []


class Parts(msgspec.Struct, frozen=True):
    """What has been measured so far."""

    loop: LoopPart | None = None
    hand: HandPart | None = None
    duel: Duel | None = None

    @classmethod
    def read(cls, folder: Path) -> Parts:
        """The parts that are stored in `folder`."""
        found = {}
        for name, kind in (("loop", LoopPart), ("hand", HandPart), ("duel", Duel)):
            path = folder / f"{name}.json"
            if path.is_file():
                found[name] = msgspec.json.decode(path.read_bytes(), type=kind)
        return cls(**found)


def _store(asked: Asked, name: str, part: msgspec.Struct) -> None:
    partial = asked.folder / f".{name}.partial"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(part), indent=1) + b"\n")
    partial.replace(asked.folder / f"{name}.json")


# The loop ------------------------------------------------------------------------------------------------------------


def loop(asked: Asked, again: bool = False) -> LoopPart:
    """Profile the script with every fix accepted; `again` goes on with the last session for another budget."""
    folder = asked.folder / "loop"
    talk = Talk(say=asked.say)
    sessions = sorted(folder.glob("cifar_resnet-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if again and sessions:
        done = resume(sessions[-1], talk, asked.options, budget=asked.budget)
    else:
        settings = Settings(
            script=str(ORIGINAL),
            argv=asked.argv,
            python=asked.python,
            cwd=str(REPO),
            accept=asked.accept,
            budget=asked.budget,
            timeout=asked.budget,
        )
        done = profile(settings, folder, talk, asked.options)
    session, outcome = done.session, done.document.outcome
    kept = [trial for trial in outcome.trials if trial.status == "kept"] if outcome is not None else []
    names = ["baseline", *(trial.folder for trial in kept)]
    versions = [Run.load(session.folder / name) for name in names]
    titles = ["as it is", *(f"{trial.title} ({trial.rule})" for trial in kept)]
    rows = [row_of(title, [run], versions[:1]) for title, run in zip(titles, versions, strict=True)]
    if outcome is not None and outcome.direct:
        direct = {"speedup": outcome.speedup.likely, "interval": outcome.speedup, "rounds": len(outcome.runs) // 2}
        rows[-1] = msgspec.structs.replace(rows[-1], **direct)
    attempts = {attempt.number: attempt for attempt in session.progress().attempts}
    last = Last(asked.argv)
    if kept:
        attempt = attempts[kept[-1].number]
        overlay = options_of(versions[-1].folder, asked.options).overlay
        texts = {os.path.relpath(path, REPO): Path(file).read_text() for path, file in overlay.items()}
        last = Last(attempt.argv, attempt.environment, texts)
    runs = [os.path.relpath(run.folder, asked.folder.resolve()) for run in versions]
    part = LoopPart(Machine.of(versions[0].record), done.document, rows, last, runs)
    _store(asked, "loop", part)
    return part


# By hand -------------------------------------------------------------------------------------------------------------


def hand(asked: Asked) -> HandPart:
    """Measure every stage, then all of them again while there are rounds and time left: what drifts meets them all."""
    began = time.monotonic()
    tuned = _Tuned(asked)
    runs: list[list[Run]] = [[] for _ in STAGES]
    errors = [""] * len(STAGES)
    notes: list[list[str]] = [[] for _ in STAGES]
    part = None
    longest = 0.0
    place = _new(asked.folder, "hand")
    for turn in range(asked.rounds):
        for stage in range(len(STAGES)):
            left = asked.budget - (time.monotonic() - began)
            if errors[stage] or (turn and left < 1.2 * longest):
                continue
            asked.say(f"by hand, round {turn + 1}, stage {stage}: {STAGES[stage]}")
            folder = place / f"{stage}-{turn + 1}"
            started = time.monotonic()
            try:
                if left <= 0:
                    raise AdvisorError("the time (--budget) was used up")
                if turn:
                    runs[stage].append(_run(tuned.command(stage), folder, asked, left, timing_only=True))
                else:
                    runs[stage].append(tuned.run(stage, folder, left, notes[stage]))
            except AdvisorError as error:
                errors[stage] = "" if turn else str(error)  # what one repeat lacks, the others have
                asked.say(str(error))
            longest = max(longest, time.monotonic() - started)
            if not runs[0]:
                raise AdvisorError(f"the script as it is could not be measured: {errors[0]}")
            part = _hand_part(asked, tuned, runs, errors, notes, time.monotonic() - began)
            _store(asked, "hand", part)
    assert part is not None
    return part


def _hand_part(
    asked: Asked, tuned: _Tuned, runs: list[list[Run]], errors: list[str], notes: list[list[str]], seconds: float
) -> HandPart:
    rows, argv = [], []
    for stage, name in enumerate(STAGES):
        if not runs[stage] and not errors[stage]:
            break  # not its turn yet
        command = tuned.command(stage)
        argv.append(list(command.argv))
        if errors[stage]:
            rows.append(Row(name, shlex.join(command.argv), error=errors[stage]))
            continue
        row = row_of(name, runs[stage], runs[0], shlex.join(command.argv))
        rows.append(msgspec.structs.replace(row, notes=[*notes[stage], *row.notes]))
    folders = [os.path.relpath(group[0].folder, asked.folder.resolve()) for group in runs if group]
    return HandPart(Machine.of(runs[0][0].record), rows, argv, folders, seconds)


class _Tuned:
    """The stages' command lines; sizes that this machine has no room for are halved, from that stage on."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._batches = list(asked.batches[1:])
        self._workers = asked.workers if asked.workers is not None else min(16, len(os.sched_getaffinity(0)))

    def command(self, stage: int) -> Command:
        sizes = ("--larger-batch", str(self._batches[0]), "--autocast-batch", str(self._batches[1]))
        workers = ("--workers", str(self._workers))
        argv = (*self._asked.argv, *sizes, *workers)
        return Command(str(BY_HAND), ("--stage", str(stage), *argv), python=self._asked.python, cwd=str(REPO))

    def run(self, stage: int, folder: Path, seconds: float, notes: list[str]) -> Run:
        """A whole run of the stage, with what fits. Raises AdvisorError when nothing does."""
        for number in range(_SMALLER + 1):
            where = folder.with_name(f"{folder.name}-smaller-{number}") if number else folder
            try:
                return _run(self.command(stage), where, self._asked, seconds)
            except AdvisorError as error:
                less = self._less(stage, _why(where, error)) if number < _SMALLER else ""
                if not less:
                    raise
                notes.append(less)
                self._asked.say(less)
        raise AssertionError

    def _less(self, stage: int, why: str) -> str:
        """Halve what there was no room for; a sentence that says so, or nothing where it was another failure."""
        if ("out of memory" in why or "_alloc_failed" in why.lower()) and stage >= LARGER_BATCH:
            which = stage >= AUTOCAST
            self._batches[which] //= 2
            return f"a batch of {self._batches[which] * 2} did not fit the device's memory: {self._batches[which]}"
        if stage and self._workers > 1 and ("shared memory" in why or "bus error" in why or "shm" in why):
            self._workers //= 2
            return f"{self._workers * 2} workers had too little shared memory: {self._workers}"
        return ""


def _why(folder: Path, error: AdvisorError) -> str:
    failure = None
    with suppress(AdvisorError):
        failure = Run.load(folder).record.failure
    kind = "out of memory " if failure is not None and failure.kind == "oom" else ""
    return f"{kind}{error} {error.detail}".lower()


def _run(
    command: Command,
    folder: Path,
    asked: Asked,
    seconds: float,
    overlay: dict[str, str] | None = None,
    timing_only: bool = False,
) -> Run:
    """A run as the loop makes them: the same windows, the same seed."""
    windows = "timing" if timing_only else asked.options.windows
    options = replace(asked.options, seed=SEED, overlay=overlay or {}, windows=windows)
    run = measure(command, folder, options, timeout=seconds)
    if run.record.failure is not None:
        raise AdvisorError(f"the script failed: {run.record.failure.message}")
    return run


# Side by side --------------------------------------------------------------------------------------------------------


def duel(asked: Asked) -> Duel:
    """The best stage by hand and the loop's last version, in alternation. Raises AdvisorError without these parts."""
    parts = Parts.read(asked.folder)
    if parts.loop is None or parts.hand is None:
        raise AdvisorError("the loop and the stages by hand come first: run --part loop and --part hand.")
    began = time.monotonic()
    stage = best_stage(parts.hand)
    by_hand = Command(str(BY_HAND), tuple(parts.hand.argv[stage]), python=asked.python, cwd=str(REPO))
    last = parts.loop.last
    improved = Command(
        str(ORIGINAL), tuple(last.argv), python=asked.python, environment=last.environment, cwd=str(REPO)
    )
    place = _new(asked.folder, "duel")
    overlay = dict(_overlay(last, place / "overlay"))
    costs, rates, result = [], [], None
    for number in range(1, _PAIRS + 1):
        pair = []
        for name, command, patched in (("hand", by_hand, {}), ("loop", improved, overlay)):
            left = asked.budget - (time.monotonic() - began)
            if left <= 0:
                return _stored_or_none(result)
            asked.say(f"side by side, pair {number}: {name}")
            pair.append(_run(command, place / f"{number}-{name}", asked, left, patched, timing_only=True))
        costs.append(compare.costs(*(run.record for run in pair)))
        rates.append((epoch_rate(pair[0].record), epoch_rate(pair[1].record)))
        result = Duel(Machine.of(pair[0].record), stage, list(costs), list(rates))
        _store(asked, "duel", result)
    return _stored_or_none(result)


def best_stage(part: HandPart) -> int:
    """The stage with the highest throughput over whole epochs: not always the last one."""
    rates = [row.epoch_samples_per_s or row.samples_per_s or 0.0 for row in part.rows]
    return rates.index(max(rates))


def _new(folder: Path, name: str) -> Path:
    """A folder ``<name>-<n>`` that is not there yet: runs of an earlier attempt stay as they are."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    place = folder / f"{name}-{number}"
    place.mkdir(parents=True)
    return place


def _stored_or_none(result: Duel | None) -> Duel:
    if result is None:
        raise AdvisorError("the time (--budget) was used up before the first pair of runs was complete.")
    return result


def _overlay(last: Last, folder: Path) -> Iterator[tuple[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (path, text) in enumerate(sorted(last.files.items()), 1):
        file = folder / f"{number}-{os.path.basename(path)}"
        file.write_text(text)
        yield str(REPO / path), str(file)
