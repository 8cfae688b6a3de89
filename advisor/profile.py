"""``advisor profile`` from the script to the report: measure, diagnose, try what is accepted, write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from advisor import gate, report
from advisor.diagnose import diagnose, evidence_of
from advisor.edit import Edit
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.harness.layout import Options, Status
from advisor.improve.accept import Policy
from advisor.improve.bench import SEED, Bench, Say
from advisor.improve.loop import Ask, Improve
from advisor.improve.state import State
from advisor.launch import check_script
from advisor.rulebook import load_rules, use
from advisor.session import Session, Settings


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
    use(settings.rules)
    Policy.parse(settings.accept, (rule.id for rule in load_rules()))
    gate.check(settings.against, settings.fail_on)
    check_script(settings.command)
    session = Session.create(settings, output)
    with session.alone():
        return _go_on(session, talk or Talk(), options)


def resume(
    folder: Path,
    talk: Talk | None = None,
    options: Options | None = None,
    *,
    accept: str | None = None,
    budget: float | None = None,
    min_gain: float | None = None,
) -> Profiled:
    """Do what is left to do of the session in `folder`, with other settings where they are given.

    ``budget`` is the time from now on, in seconds. Whatever killed runs of it have left behind must have been put back
    (:func:`advisor.restore.recover`). Raises as :func:`profile` does.
    """
    session = Session.open(folder)
    use(session.settings.rules)
    if accept is not None:
        Policy.parse(accept, (rule.id for rule in load_rules()))
    with session.alone():
        if budget is not None:
            budget += session.progress().seconds
        return _go_on(session.changed(accept, budget, min_gain), talk or Talk(), options)


def _go_on(session: Session, talk: Talk, options: Options | None) -> Profiled:
    began = time.monotonic()
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
    evidence = evidence_of(baseline.run)
    diagnosis = diagnose(evidence)
    gate.repeat(bench, baseline, session.folder, settings.runs)
    if not progress.trials:
        first = _written(session, diagnosis.document, evidence, None, diagnosis.root)
        if policy.mode == "none":
            return first
        talk.found(first.document, first.files)
    loop = Improve(session, policy, bench, baseline, evidence, diagnosis, talk.ask, talk.say, began)
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
