"""``advisor profile`` from the script to the report: measure, diagnose, try what is accepted, write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from advisor import gate, report
from advisor.accept import Policy
from advisor.diagnose import diagnose, load_rules
from advisor.edit import Edit
from advisor.errors import BAD_TRACE, AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.harness.layout import Options, Status
from advisor.improve import Ask, Improve
from advisor.launch import check_script
from advisor.run import Run
from advisor.session import Session, Settings
from advisor.state import State
from advisor.trial import SEED, Bench, Say


@dataclass(frozen=True)
class Talk:
    """How a session speaks with its user: all silent by default.

    ``progress`` shows what the harness does, ``say`` an event in a line; ``found`` is given the first diagnosis before
    anything is tried, ``ask`` each fix to try.
    """

    progress: Callable[[Status], None] | None = None
    say: Say = lambda text: None
    found: Callable[[Findings, dict[str, str]], None] = lambda document, files: None
    ask: Ask | None = None


@dataclass(frozen=True)
class Profiled:
    """A session's result: its findings, what is where, and the kept edits for the user's files, if there are any."""

    document: Findings
    files: dict[str, str]
    session: Session
    edit: Edit | None = None


def profile(settings: Settings, output: Path, talk: Talk | None = None, options: Options | None = None) -> Profiled:
    """Profile one script into a new session below `output`, and try the fixes that are accepted.

    `options` are other lengths of the windows than the harness's own. Raises AdvisorError for everything that can go
    wrong with the script or the folder.
    """
    Policy.parse(settings.accept, (rule.id for rule in load_rules()))
    gate.check(settings.against, settings.fail_on)
    check_script(settings.command)
    return go_on(Session.create(settings, output), talk, options)


def go_on(session: Session, talk: Talk | None = None, options: Options | None = None) -> Profiled:
    """Do what is left to do of a session: all of it when it is new. Raises as :func:`profile` does."""
    talk = talk or Talk()
    settings, progress = session.settings, session.progress()
    policy = Policy.parse(progress.accept or settings.accept, (rule.id for rule in load_rules()))
    bench = Bench(
        replace(options or Options(), step=settings.step, skip=settings.skip, seed=SEED),
        timeout=settings.timeout,
        deadline=None if settings.budget is None else time.monotonic() + settings.budget - progress.seconds,
        progress=talk.progress,
        say=talk.say,
    )
    baseline = bench.baseline(State(settings.command), session.baseline_dir)
    _check_trace(baseline.run)
    evidence = Evidence.from_run(baseline.run)
    diagnosis = diagnose(evidence)
    gate.repeat(bench, baseline, session.folder, settings.runs)
    if policy.mode == "none" and not progress.trials:
        return _written(session, diagnosis.document, evidence, None, diagnosis.root)
    first = _written(session, diagnosis.document, evidence, None, diagnosis.root)
    if not progress.trials:
        talk.found(first.document, first.files)
    loop = Improve(session, policy, bench, baseline, evidence, diagnosis, talk.ask, talk.say)
    try:
        if not progress.ended:
            loop.run()
    finally:
        done = _written(session, loop.document(), evidence, loop.edit, diagnosis.root)
    return done


def _written(session: Session, document: Findings, evidence: Evidence, edit: Edit | None, root: str) -> Profiled:
    """Everything that the session's folder shows, written anew."""
    files = report.write(document, session.folder, evidence)
    patch = session.write_patch(document, edit.diff_bytes(root) if edit is not None else None)
    if patch is not None:
        files["patch"] = str(patch)
    files["traces"] = str(session.baseline_dir)
    return Profiled(document, files, session, edit)


def _check_trace(run: Run) -> None:
    """A run that used the GPU and whose trace has no GPU work would make an empty diagnosis: that is an error."""
    if run.record.device.type == "cuda" and run.trace is not None and len(run.trace.kernels) == 0:
        raise AdvisorError(
            "the script used the GPU, but its trace holds no kernel: another profiler may hold the GPU's counters, or "
            "this user may not read them (on NVIDIA: NVreg_RestrictProfilingToAdminUsers); end the one, or ask for the "
            "other, and profile again.",
            BAD_TRACE,
        )
