"""One case, profiled in a process of its own: ``python -m tests.accuracy.child REQUEST.json``; its answer is a file.

A process each, so that what one case does to memory, threads or modules is not there when the next is measured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from advisor.analyze import analyze
from advisor.compare import LEAST_PAIRS, compare_pairs, costs
from advisor.errors import AdvisorError
from advisor.findings import FindingDocument, Findings, FixDocument
from advisor.harness.layout import Options, RunRecord
from advisor.improve.bench import SEED
from advisor.improve.state import with_options
from advisor.improve.trial import MOST_PAIRS
from advisor.launch import Command, measure
from advisor.profile import profile, resume
from advisor.session import Settings

# Windows as short as the project's tests have them: the findings of scripts with one large fault survive that.
SHORT = Options(min_seconds=0.5, max_seconds=5.0, settle_max_seconds=5.0)
# A patched script shows that it runs in a few steps; compiling it may take minutes before.
_A_FEW_STEPS = replace(SHORT, windows="timing", min_steps=3, settle_max_steps=10, seed=SEED)
PATCHED_TIMEOUT = 300.0  # seconds
# What is measured in pairs: windows shorter than a session's, as many runs as a session makes before it decides, and
# more where these leave open which half of a predicted range it is.
_WIDE = 1.4
_TIMED = Options(min_seconds=3.0, max_seconds=30.0, settle_max_seconds=20.0, windows="timing", seed=SEED)


class Request(msgspec.Struct, frozen=True):
    """``script`` lies in a folder of its own, ``copy``, which it runs in; ``folder`` is where sessions and runs go.

    ``task`` is what to do: ``findings`` profiles the script and tries whether what the diffs make of it runs, ``gain``
    times the script beside what ``fix`` makes of it, or beside ``twin`` when that is None; with ``whole`` by all that
    the timing window held, evaluations for one, not by its steps alone.

    ``trace`` is diagnosed in place of a script, where there is none.

    ``key`` stands for all that a measurement depends on. What ``folder`` holds of an earlier request with the same one
    is not measured again, only diagnosed.
    """

    task: str
    copy: str
    script: str
    folder: str
    args: list[str] = []
    short: bool = False
    timeout: float = 600.0
    fix: FixDocument | None = None
    whole: bool = False
    twin: str = ""
    trace: str = ""
    key: str = ""


class Proposal(msgspec.Struct, frozen=True):
    """A finding. ``applies`` and ``runs`` say what became of its fix: None for advice, and where it was not come to."""

    rule: str
    file: str | None
    line: int | None
    fix: str
    low: float
    likely: float
    high: float
    summary: str = ""
    applies: bool | None = None
    runs: bool | None = None
    trouble: str = ""
    change: FixDocument | None = None  # None of advice


class Measurement(msgspec.Struct, frozen=True):
    """A fix as it was predicted and as it was measured: speedups, the measured one with its 95 % interval."""

    rule: str
    low: float
    likely: float
    high: float
    speedup: float
    measured_low: float
    measured_high: float
    pairs: int


class Timed(msgspec.Struct, frozen=True):
    """How much faster one version of a script is than another (the median of the pairs), with its 95 % interval."""

    speedup: float
    low: float
    high: float
    pairs: int


class Answer(msgspec.Struct, frozen=True):
    """What came of a request. ``error`` is what ended it; ``trace`` the recorded trace, relative to the folder.

    ``busy`` are the cores that other programs kept busy when it began: with more than a few hundredths of one, neither
    findings nor gains are those of the script alone.
    """

    seconds: float
    error: str = ""
    verdict: str = ""
    step_ms: float | None = None
    proposals: list[Proposal] = []
    notes: list[str] = []
    trace: str = ""
    timed: Timed | None = None
    busy: float = 0.0


def findings(request: Request) -> Answer:
    """Profile the script; apply each diff to a copy of it and run that. Of a trace, what is said of it."""
    began = time.monotonic()
    if request.trace:
        document, evidence = analyze([request.trace])
        return _answer(request, began, document, Path(evidence.trace.path))  # of several ranks the first
    sessions, note = Path(request.folder) / "sessions", Path(request.folder) / "measured.json"
    earlier = _measured(note, request.key)
    if earlier is not None:
        done = resume(sessions / earlier, options=_options(request))
    else:
        for old in (sessions, Path(request.folder) / "patched"):
            shutil.rmtree(old, ignore_errors=True)
        done = profile(_settings(request), sessions, options=_options(request))
        note.write_bytes(msgspec.json.encode({"key": request.key, "session": done.session.folder.name}))
    traces = sorted(done.session.baseline_dir.glob("*.pt.trace.json*"))
    return _answer(request, began, done.document, traces[0] if traces else None)


def _answer(request: Request, began: float, document: Findings, trace: Path | None) -> Answer:
    return Answer(
        seconds=time.monotonic() - began,
        verdict=document.verdict,
        step_ms=document.step_ms,
        proposals=[_proposal(request, each) for each in document.findings],
        notes=document.notes,
        trace=os.path.relpath(trace, request.folder) if trace is not None else "",
    )


def _measured(note: Path, key: str) -> str | None:
    """The name of the session that was measured for `key`, when there is one."""
    try:
        kept = msgspec.json.decode(note.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return None
    return kept["session"] if key and kept["key"] == key else None


def gain(request: Request) -> Answer:
    """How much faster the fix, or the twin, makes the script, measured as a session does, in alternating runs.

    It does not depend on what was predicted: a rule that predicts something else of the same fix needs no new runs.
    """
    began = time.monotonic()
    before = _command(request, request.copy, request.script)
    if request.fix is None:
        after = _command(request, request.copy, request.twin)
    else:
        copy = Path(shutil.copytree(request.copy, Path(request.folder) / "patched"))
        trouble = apply(request.fix.diff, copy) if request.fix.diff else ""
        if trouble:
            return Answer(time.monotonic() - began, trouble)
        after = _with(request, request.fix, copy)
    found: list[tuple[float, float]] = []
    while len(found) < LEAST_PAIRS or (len(found) < MOST_PAIRS and _is_wide(found)):
        number = len(found) + 1
        records = {}
        # The other way round in every second pair, so that what drifts favours neither.
        for name in ("before", "after") if number % 2 else ("after", "before"):
            run_dir = Path(request.folder) / "runs" / f"{number}-{name}"
            command = before if name == "before" else after
            records[name] = measure(command, run_dir, _TIMED, timeout=request.timeout).record
        pair = records["before"], records["after"]
        found.append((_whole(pair[0]), _whole(pair[1])) if request.whole else costs(*pair))
    compared = compare_pairs(found)
    typical = statistics.median(one / other for one, other in found)
    timed = Timed(typical, min(compared.low, typical), max(compared.high, typical), compared.pairs)
    return Answer(seconds=time.monotonic() - began, timed=timed)


def _is_wide(found: list[tuple[float, float]]) -> bool:
    compared = compare_pairs(found)
    return compared.high > _WIDE * compared.low


def _whole(record: RunRecord) -> float:
    """Seconds per step, with what came between the steps: evaluations, checkpoints, starts of epochs."""
    timing = record.timing
    if timing.step_s is None:
        raise AdvisorError("the run has no step time")
    steps = timing.steps + sum(timing.aside_counts.values())
    return timing.step_s + sum(timing.aside.values()) / max(1, steps)


def digest(fix: FixDocument) -> str:
    """Sixteen letters for what a fix changes, however that is put into words."""
    changes = (fix.diff, sorted(fix.arguments.items()), sorted(fix.environment.items()))
    return hashlib.sha256(msgspec.json.encode(changes)).hexdigest()[:16]


def _settings(request: Request) -> Settings:
    return Settings(
        script=request.script,
        argv=request.args,
        python=sys.executable,
        cwd=request.copy,
        timeout=request.timeout,
        accept="none",
    )


def _options(request: Request) -> Options | None:
    return SHORT if request.short else None


def _command(request: Request, cwd: str, script: str) -> Command:
    return Command(script=script, argv=tuple(request.args), python=sys.executable, cwd=cwd)


# Patched scripts -----------------------------------------------------------------------------------------------------


def _proposal(request: Request, each: FindingDocument) -> Proposal:
    speedup = each.predicted.speedup
    applies, runs, trouble = _tried(request, each.fix)
    return Proposal(
        rule=each.rule,
        file=each.file,
        line=each.line,
        fix=each.fix.kind,
        low=speedup.low,
        likely=speedup.likely,
        high=speedup.high,
        summary=each.summary,
        applies=applies,
        runs=runs,
        trouble=trouble,
        change=None if each.fix.kind == "advice" else each.fix,
    )


def _tried(request: Request, fix: FixDocument) -> tuple[bool | None, bool | None, str]:
    """Whether the fix can be applied as its reader would, and whether the script then runs; what went wrong."""
    if fix.kind == "advice":
        return None, None, ""
    place = Path(request.folder) / "patched" / digest(fix)
    kept = place / "result.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=tuple[bool | None, bool | None, str])
    shutil.rmtree(place, ignore_errors=True)
    result = _applied_and_run(request, fix, place)
    kept.write_bytes(msgspec.json.encode(result))
    return result


def _applied_and_run(request: Request, fix: FixDocument, place: Path) -> tuple[bool, bool | None, str]:
    copy = shutil.copytree(request.copy, place / "script")
    if fix.diff:
        trouble = apply(fix.diff, copy)
        if trouble:
            return False, None, trouble
    try:
        record = measure(_with(request, fix, copy), place / "run", _A_FEW_STEPS, timeout=PATCHED_TIMEOUT).record
    except AdvisorError as error:
        return True, False, f"{error} {error.detail[-2000:]}".strip()
    return True, record.failure is None, record.failure.message if record.failure is not None else ""


def _with(request: Request, fix: FixDocument, copy: Path) -> Command:
    """The command that runs `copy`, which has the fix's diff, with the fix's arguments and environment."""
    command = _command(request, str(copy), str(copy / Path(request.script).name))
    return replace(command, argv=with_options(command.argv, fix.arguments), environment=dict(fix.environment))


def apply(diff: str, folder: Path) -> str:
    """``git apply`` in `folder`, whatever repository that lies in; what git says against it, or nothing."""
    done = subprocess.run(
        ["git", "apply", "-"],
        input=diff.encode("utf-8", "surrogateescape"),
        cwd=folder,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)},
        capture_output=True,
        check=False,
    )
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


def others_busy(seconds: float = 0.5) -> float:
    """Cores that are in use while this process sleeps (Linux; elsewhere none is seen)."""

    def used() -> int:
        user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
        return user + nice + system

    if not Path("/proc/stat").exists():
        return 0.0
    start, began = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - start) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


TASKS = {"findings": findings, "gain": gain}


def main() -> None:
    """Read the request, write ``answer.json`` into its folder."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Request)
    busy, began = others_busy(), time.monotonic()
    try:
        answer = TASKS[request.task](request)
    except AdvisorError as error:
        said = f"{error} (exit status {error.exit_status}) {error.detail[-2000:]}".strip()
        answer = Answer(time.monotonic() - began, said)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(msgspec.structs.replace(answer, busy=busy)))


if __name__ == "__main__":
    main()
