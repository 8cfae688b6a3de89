"""Two versions of a script, or two days of one, side by side: what was measured of each, and what differs.

A side is named by a folder: a run's, a trial's (its run, and the runs of the patched script that were paired with it),
or a session's (the script as it was found: its baseline, its repeats, and the trials' runs of it).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from advisor import compare
from advisor.compare import Comparison
from advisor.errors import AdvisorError
from advisor.evidence import Evidence
from advisor.harness import layout
from advisor.harness.layout import RunRecord
from advisor.rulebook import load_rules
from advisor.run import Run
from advisor.session import BASELINE, FINAL, PAIRS, SESSION_JSON, TRIALS_JSON, Session, Settings

REPEATS = "repeats"


@dataclass(frozen=True, eq=False)
class Side:
    """One side: ``runs`` are all of one version of the script, ``main`` first; that one has the trace, if any has."""

    folder: Path
    runs: tuple[Run, ...]

    @property
    def main(self) -> Run:
        return self.runs[0]

    @property
    def record(self) -> RunRecord:
        return self.main.record

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence.from_run(self.main)

    @property
    def step_s(self) -> float:
        """Mean seconds per step, every run counting the same."""
        return math.fsum(compare.cost(run.record).step_s for run in self.runs) / len(self.runs)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all runs together; None where one does not know its samples."""
        found = [compare.cost(run.record) for run in self.runs]
        samples = [each.samples for each in found if each.samples is not None]
        return math.fsum(samples) / math.fsum(each.step_s for each in found) if len(samples) == len(found) else None

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Class of time → seconds per step: the trace's shares of the step as it was timed without the profiler."""
        if self.main.trace is None:
            return {}
        return {name: share * self.step_s for name, share in self.evidence.shares.items()}

    @cached_property
    def findings(self) -> dict[str, str] | None:
        """Rule → what it found, in its first finding's words; None for a run without a trace."""
        if self.main.trace is None:
            return None
        found: dict[str, str] = {}
        for rule in load_rules():
            with suppress(Exception):  # a rule's fault is reported with its session; here the others still count
                for finding in rule.check(self.evidence):
                    found.setdefault(rule.id, finding.title)
        return found


@dataclass(frozen=True)
class Difference:
    """Something about the two sides' surroundings that is not the same; "" where one side does not have it."""

    what: str
    a: str
    b: str


@dataclass(frozen=True, eq=False)
class Contrast:
    """A beside B. ``comparison`` says how much faster B is; ``per_sample`` that samples, not steps, were compared."""

    a: Side
    b: Side
    comparison: Comparison
    per_sample: bool
    differences: tuple[Difference, ...]

    @cached_property
    def appeared(self) -> dict[str, str]:
        """Rule → title of what is found in B and was not in A. Empty where either cannot be diagnosed."""
        return _without(self.b.findings, self.a.findings)

    @cached_property
    def gone(self) -> dict[str, str]:
        """Rule → title of what was found in A and is not in B. Empty where either cannot be diagnosed."""
        return _without(self.a.findings, self.b.findings)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What makes the comparison less certain, in sentences."""
        return tuple(_notes(self))


def contrast(a: Side, b: Side) -> Contrast:
    """Compare two sides: pair by pair if they were run in alternation (at least three pairs), else as two groups.

    Raises AdvisorError when a run has no step time.
    """
    pairs = list(_pairs(a, b))
    if len(pairs) >= compare.LEAST_PAIRS:
        before, after = [one.record for one, _ in pairs], [other.record for _, other in pairs]
    else:
        before, after = [run.record for run in a.runs], [run.record for run in b.runs]
    costs = compare.group_costs(before, after)
    comparison = (
        compare.compare_pairs(list(zip(*costs, strict=True)))
        if len(pairs) >= compare.LEAST_PAIRS
        else compare.compare_groups(*costs)
    )
    per_sample = compare.per_sample([compare.cost(each) for each in before], [compare.cost(each) for each in after])
    return Contrast(a, b, comparison, per_sample, tuple(_differences(a.record, b.record)))


def open_side(folder: str | os.PathLike[str]) -> Side:
    """The side that a folder names. Raises AdvisorError when it is none, or its run has no step time."""
    path = Path(folder)
    if not path.is_dir():
        raise AdvisorError(f"{path} is not a folder: name a run, a trial or a session of `advisor profile`.")
    path = path.resolve()
    if (path / layout.RUN_JSON).is_file():
        main, others = path, sorted((path / PAIRS).glob("*-after"), key=_number)
    elif (path / SESSION_JSON).is_file() or (path / BASELINE).is_dir():
        main, others = path / BASELINE, _unpatched(path)
    else:
        raise AdvisorError(
            f"{folder} holds neither a run nor a session: name a folder that `advisor profile` wrote, with "
            f"{layout.RUN_JSON} or {BASELINE} in it."
        )
    try:
        run = Run.load(main)
        compare.cost(run.record)
    except AdvisorError as error:
        raise AdvisorError(f"{folder} cannot be compared: {error}", error.exit_status) from error
    return Side(path, (run, *_usable(others)))


def _unpatched(session: Path) -> list[Path]:
    """The folders of a session's further runs of the script as it was found."""
    found = sorted((session / REPEATS).glob("*"), key=_number)
    if (session / TRIALS_JSON).is_file():
        progress = Session(session, Settings("")).progress()
        for attempt in progress.attempts:
            if not attempt.kept_before:
                found += sorted(session.glob(f"{attempt.number:02d}-*/{PAIRS}/*-before"), key=_number)
    # The direct comparison at the end has the script as it was on one side, always.
    return found + sorted(session.glob(f"{FINAL}*/*-before"), key=_number)


def _usable(folders: Sequence[Path]) -> Iterator[Run]:
    """The runs among `folders` that came to an end and have a step time: a killed session may have left others."""
    for folder in folders:
        with suppress(AdvisorError):
            run = Run.load(folder)
            compare.cost(run.record)
            if run.record.failure is None:
                yield run


def _number(folder: Path) -> tuple[int, str]:
    match = re.match(r"\d+", folder.name)
    return int(match[0]) if match else 0, folder.name


# Pairs ---------------------------------------------------------------------------------------------------------------


def _pairs(a: Side, b: Side) -> Iterator[tuple[Run, Run]]:
    """Runs of the two sides that a session made one after the other, in order, whichever side was patched."""
    of_a, of_b = ({run.folder: run for run in side.runs} for side in (a, b))
    if of_a.keys() & of_b.keys():
        return  # runs of both sides: a version beside itself
    for session in {side.folder if (side.folder / TRIALS_JSON).is_file() else side.folder.parent for side in (a, b)}:
        for before, after in _recorded_pairs(session):
            if before in of_a and after in of_b:
                yield of_a[before], of_b[after]
            elif after in of_a and before in of_b:
                yield of_a[after], of_b[before]


def _recorded_pairs(session: Path) -> Iterator[tuple[Path, Path]]:
    if not (session / TRIALS_JSON).is_file():
        return
    for trial in Session(session, Settings("")).progress().trials:
        for before, after in zip(trial.before, trial.after, strict=False):
            yield session / before, session / after


# What differs --------------------------------------------------------------------------------------------------------

# These differ from hour to hour, or say in other words what other fields say.
_UNTOLD = {"shm_bytes", "cpu_flags", "platform", "implementation", "cuda_available", "gpus", "compiler"}
_WORDS = {
    "python": "Python",
    "torch_cuda": "CUDA of torch",
    "cpu": "processor",
    "usable_cpus": "usable CPU cores",
    "intraop_threads": "threads in an operator",
    "interop_threads": "threads between operators",
    "start_method": "start method of processes",
    "cudnn_benchmark": "cuDNN benchmark mode",
    "matmul_precision": "float32 matmul precision",
    "cudnn_tf32": "TF32 in cuDNN",
    "deterministic": "deterministic algorithms",
    "anomaly": "anomaly detection",
}


def _differences(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    one, other = _surroundings(a), _surroundings(b)
    for what in dict.fromkeys((*one, *other)):
        before, after = one.get(what, ""), other.get(what, "")
        if before != after:
            yield Difference(what, before, after)


def _surroundings(record: RunRecord) -> dict[str, str]:
    """All that may make one run faster than another beside the script's text: name → value as text."""
    environment, device = record.environment, record.device
    facts: dict[str, Any] = {
        "script": record.script,
        "script arguments": shlex.join(record.argv),
        "device": device.name or device.type,
        "devices": device.count,
        "driver": device.driver,
    }
    for field in dataclasses.fields(environment):
        value = getattr(environment, field.name)
        if field.name not in _UNTOLD and not isinstance(value, dict):
            facts[_WORDS.get(field.name, field.name)] = value
    facts |= environment.packages
    facts |= environment.variables
    facts["ranks"] = record.world_size
    facts["step"] = record.step_kind
    facts["training of the script"] = record.training
    facts["samples per step"] = record.timing.samples_per_step
    facts["ranks"] = record.world_size
    for number, loader in enumerate(each for each in record.loaders if each.trains):
        which = f" {number + 1}" if number else ""
        facts[f"batch size{which}"] = loader.batch_size
        facts[f"loader workers{which}"] = loader.num_workers
    return {name: _text(value) for name, value in facts.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _without(these: dict[str, str] | None, those: dict[str, str] | None) -> dict[str, str]:
    if these is None or those is None:
        return {}
    return {rule: title for rule, title in these.items() if rule not in those}


# In words ------------------------------------------------------------------------------------------------------------


def sentence(contrast: Contrast, a: str = "A", b: str = "B") -> str:
    """The verdict: how much faster `b` is than `a`, or that they cannot be told apart and what could have been."""
    comparison = contrast.comparison
    per = " per sample" if contrast.per_sample else ""
    runs = _runs(comparison)
    assumed = ""
    if comparison.assumed:
        share = f"{compare.SPREAD_ASSUMED:.0%}"
        assumed = (
            f"; so few runs do not tell how much runs differ among themselves: {share} were assumed"
            if comparison.spread == compare.SPREAD_ASSUMED
            else "; so few runs hardly tell how much runs differ among themselves"
        )
    span = f"{comparison.low:.2f}–{comparison.high:.2f}"
    if not comparison.different:
        least = comparison.smallest_gain() - 1
        return (
            f"no difference can be told: {b} is between {comparison.low:.2f}× and {comparison.high:.2f}× as fast as "
            f"{a}{per} ({runs}); the smallest gain that could have been seen is {_percent(least)}{assumed}"
        )
    if comparison.speedup > 1:
        return f"{b} is {comparison.speedup:.2f}× as fast as {a}{per} ({span}, {runs}){assumed}"
    more = 1 / comparison.speedup - 1
    return (
        f"{b} is slower than {a}: {comparison.speedup:.2f}× as fast{per} ({span}, {runs}), that is {_percent(more)} "
        f"more time{assumed}"
    )


def _runs(comparison: Comparison) -> str:
    one, other = comparison.runs
    if comparison.paired:
        return f"{one} pairs of runs in alternation"
    if one == other:
        return "1 run each" if one == 1 else f"{one} runs each"
    return f"{one} and {other} runs"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _notes(contrast: Contrast) -> Iterator[str]:
    if not contrast.comparison.paired:
        yield (
            "the runs of the two were not made in alternation: what changed on the machine in between is in the "
            "difference too"
        )
    if {run.folder for run in contrast.a.runs} & {run.folder for run in contrast.b.runs}:
        yield "the two have runs in common"
    for name, side in (("the first", contrast.a), ("the second", contrast.b)):
        timing = side.record.timing
        if timing.from_profile:
            yield f"{name} was over too early: its times were taken under the profiler, or before they had settled"
        elif not timing.settled:
            yield f"the step times of {name} had not settled"
        if side.findings is None:
            yield f"{name} was only timed: where its time goes is not known"
    if (contrast.a.samples_per_s is None) != (contrast.b.samples_per_s is None):
        yield "only one of the two knows how many samples a step has: steps were compared"
