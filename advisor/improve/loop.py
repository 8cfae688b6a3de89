"""The loop: offer a fix, try it, keep it if the measurement supports it, diagnose anew.

A fix moves the bottleneck, so after each one that is kept the new trace is diagnosed and predictions are made
anew; what brought nothing before may be offered again then. Only what crashed or broke the numbers never is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from advisor.diagnose import Diagnosis, diagnose, evidence_of
from advisor.edit import Edit
from advisor.errors import AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings, Searched, Trial
from advisor.harness import layout
from advisor.improve.accept import Answer, Policy
from advisor.improve.bench import Bench, BudgetError, Say, TrialError, Version, options_of
from advisor.improve.candidates import Candidate, Candidates
from advisor.improve.offers import Offer, open_offers
from advisor.improve.outcome import Ends, session_document
from advisor.improve.state import State, digest, digest_of
from advisor.improve.trial import Result, compare_versions
from advisor.rule import Safety
from advisor.run import Run
from advisor.session import FINAL, PAIRS, Attempt, Direct, Progress, Session

# No session needs so many; it guards against rules that would undo one another's work for ever.
_MOST_TRIALS = 40

Ask = Callable[[Offer], Answer]


@dataclass
class _Trying:
    """A trial under way."""

    number: int
    offer: Offer
    folder: Path
    candidate: Candidate
    searched: list[Searched] = field(default_factory=list)
    version: Version | None = None
    adjacent: bool = False  # the current version's whole run was made just before: the two are a pair


class Improve:
    """One session's loop over a script whose baseline was run and diagnosed.

    Goes on where ``progress`` says that a killed session was. Raises AdvisorError when a file that its fixes were made
    from has changed since.
    """

    def __init__(
        self,
        session: Session,
        policy: Policy,
        bench: Bench,
        baseline: Version,
        evidence: Evidence,
        diagnosis: Diagnosis,
        ask: Ask | None = None,
        say: Say = lambda text: None,
        began: float | None = None,
    ) -> None:
        self._session = session
        self._policy = policy
        self._bench = bench
        self._ask = ask
        self._say = say
        self._min_gain = session.settings.min_gain
        self._root = diagnosis.root
        self._candidates = Candidates(bench, diagnosis.root, self._min_gain, say, self._name)
        self._baseline, self._before = baseline, diagnosis
        self._current, self._now, self._evidence = baseline, diagnosis, evidence
        self._began = began if began is not None else time.monotonic()
        self._passed: set[str] = set()  # places of what --accept does not name
        self.progress: Progress = session.progress()
        self.ended = self.progress.ended
        script = baseline.state.command
        if not script.module:
            self.progress.files.setdefault(script.script, digest_of(script.script))
        self._check_files()
        bench.check = self._check_files
        self._take_up()

    def run(self) -> None:
        """Offer and try until nothing is left, the user has enough, or the time is up; ``ended`` says which."""
        self.progress.ended = ""
        try:
            self.ended = self._loop()
            self._compare_ends()
            self.progress.ended = self.ended
        except BudgetError:
            self.ended = self.progress.ended = "the time (--budget) was used up"
        except KeyboardInterrupt:
            self.ended = "interrupted"
            raise
        except Exception:
            self.ended = "an error ended it"
            raise
        finally:
            self._store()

    @property
    def edit(self) -> Edit | None:
        """All kept edits as one, against the files on disk."""
        return self._current.state.edit

    def document(self) -> Findings:
        """The session's findings as they stand."""
        ends = Ends(self._baseline, self._before, self._current, self._now)
        return session_document(ends, self.progress, self.ended)

    def _loop(self) -> str:
        while True:
            if len(self.progress.trials) >= _MOST_TRIALS:
                return f"{_MOST_TRIALS} fixes were tried"
            offer = next(open_offers(self._now, self.progress, self._passed), None)
            if offer is None:
                return "no fix is left to try"
            answer = self._answer(offer)
            if answer is Answer.QUIT:
                return "stopped by the user"
            if answer is Answer.NO:
                self._passed.add(offer.place)
                continue
            if self._bench.left <= 0:
                raise BudgetError
            self._try(offer)

    def _answer(self, offer: Offer) -> Answer:
        if self._begun(offer) is not None:
            return Answer.YES  # to the session that was killed
        ask, each, mode = self._ask, offer.diagnosed, self._policy.mode
        asked = time.monotonic()
        answer, policy = self._policy.decide(each.rule.id, each.safety, (lambda: ask(offer)) if ask else None)
        thought = time.monotonic() - asked  # the user's time is not the session's
        self._began += thought
        if self._bench.deadline is not None:
            self._bench.deadline += thought
        if policy != self._policy:
            self._policy = policy
            self.progress.accept = policy.mode
        if answer is Answer.NO and mode == "ask" and ask is not None:
            self.progress.declined.append(offer.place)
            self._store()
        return answer

    # Trying.

    def _try(self, offer: Offer) -> None:
        number = self._begin(offer)
        rule = offer.diagnosed.rule
        folder = self._session.trial_dir(number, rule.id)
        self._say(f"trial {number}: {offer.document.title} ({rule.id})")
        trying = _Trying(number, offer, folder, self._candidates.of(self._current, offer))
        try:
            search = folder.with_name(f"{folder.name}-search")
            trying.candidate = self._candidates.best(self._current, offer, search, trying.searched)
            self._run(trying)
            result = self._compare(trying)
        except TrialError as error:
            result = Result("failed", str(error), kind=error.kind)
        if result.kind in _FAILURES:
            result = replace(result, reason=f"{_FAILURES[result.kind]}: {result.reason}")
        self._end(trying, result)

    def _run(self, trying: _Trying) -> None:
        """The whole run of the patched script; once more with a smaller batch where it needs one."""
        trying.adjacent = self._bench.neighbour(self._current)
        try:
            trying.version = self._bench.whole(trying.candidate.state, trying.folder, self._current)
        except TrialError as error:
            if error.kind != "oom":
                raise
            lighter = self._candidates.lighter(self._current, trying.offer, self._evidence)
            if lighter is None:
                raise
            self._say(f"{trying.candidate.title}: out of memory; once more with a smaller batch")
            trying.folder = trying.folder.with_name(f"{trying.folder.name}-smaller-batch")
            trying.candidate, trying.adjacent = lighter, False
            trying.version = self._bench.whole(lighter.state, trying.folder, self._current)

    def _compare(self, trying: _Trying) -> Result:
        version = trying.version
        assert version is not None
        return compare_versions(
            self._bench,
            self._current,
            version,
            trying.folder / PAIRS,
            safety=trying.candidate.safety,
            min_gain=self._min_gain,
            first=(self._current.run, version.run) if trying.adjacent else None,
        )

    def _compare_ends(self) -> None:
        """With several fixes kept, the first and the last version in alternation: what they bring all together."""
        kept = sum(trial.status == "kept" for trial in self.progress.trials)
        if kept < 2 or (self.progress.direct is not None and self.progress.direct.kept == kept):
            return
        self._say("the script as it was beside the script with all fixes that were kept")
        folder = self._session.folder / f"{FINAL}-{kept}"
        # What each fix may change in the numbers was judged when it was tried.
        result = compare_versions(
            self._bench, self._baseline, self._current, folder, safety=Safety.BEHAVIOUR, min_gain=self._min_gain
        )
        names = [[self._name(path) for path in paths] for paths in (result.before, result.after)]
        failure = result.reason if result.status == "failed" else ""
        enough = len(result.after) >= 2
        if enough or failure:
            self.progress.direct = Direct(kept, result.measured if enough else None, names[0], names[1], failure)

    # Keeping count.

    def _begun(self, offer: Offer) -> Attempt | None:
        """The attempt at this very change that a killed session began."""
        found = (each for each in self.progress.attempts if not each.done)
        return next((each for each in found if (each.place, each.fix) == (offer.place, offer.fix)), None)

    def _begin(self, offer: Offer) -> int:
        """Number the trial and remember that it is under way; one that a killed session began keeps its number."""
        begun = self._begun(offer)
        if begun is not None:
            return begun.number
        number = max((each.number for each in self.progress.attempts), default=0) + 1
        kept = sum(trial.status == "kept" for trial in self.progress.trials)
        self.progress.attempts.append(Attempt(number, offer.place, offer.fix, kept, offer.document))
        if isinstance(offer.diagnosed.fix, Edit):
            for path, source in offer.diagnosed.fix.before.items():
                # What the fix was made from: a file that was edited before it is first seen here has an earlier text.
                if path not in self._current.state.before:
                    self.progress.files.setdefault(path, digest(source.encode()))
            self._check_files()
        self._store()
        return number

    def _end(self, trying: _Trying, result: Result) -> None:
        candidate, version = trying.candidate, trying.version
        if result.status == "kept" and version is not None:
            try:
                self._go_on_from(version)
            except AdvisorError as error:  # its trace cannot be read: what it does cannot be known
                result = replace(result, status="failed", reason=str(error))
        trial = Trial(
            number=trying.number,
            rule=trying.offer.diagnosed.rule.id,
            title=candidate.title,
            safety=candidate.safety.value,
            status=result.status,
            reason=result.reason,
            predicted=candidate.predicted,
            fix=candidate.fix,
            folder=self._name(trying.folder),
            before=[self._name(path) for path in result.before],
            after=[self._name(path) for path in result.after],
            measured=result.measured,
            numerics=result.numerics,
            searched=trying.searched,
        )
        if result.status == "kept":
            trial = msgspec.structs.replace(trial, verdict_after=self._now.document.verdict)
        command = candidate.state.command
        self.progress.attempts = [
            msgspec.structs.replace(
                each,
                done=True,
                final=result.kind in _FINAL,
                argv=list(command.argv),
                environment=dict(command.environment),
            )
            if each.number == trying.number
            else each
            for each in self.progress.attempts
        ]
        self.progress.trials.append(trial)
        self._store()
        self._say(_said(trial))

    def _go_on_from(self, version: Version) -> None:
        """Make this the current version of the script, and diagnose it. Raises AdvisorError for a useless trace."""
        evidence = evidence_of(version.run)
        self._now = diagnose(evidence, version.state.sources, self._root)
        self._current, self._evidence = version, evidence

    def _take_up(self) -> None:
        """Go on from the last fix that a killed session had kept."""
        kept = [trial for trial in self.progress.trials if trial.status == "kept"]
        if not kept:
            return
        attempt = next(each for each in self.progress.attempts if each.number == kept[-1].number)
        folder = self._session.folder / kept[-1].folder
        options = options_of(folder, self._bench.options)
        command = replace(self._baseline.state.command, argv=tuple(attempt.argv), environment=dict(attempt.environment))
        # By name: the session's folder may have been moved.
        overlay = {path: str(folder / layout.OVERLAY_DIR / Path(file).name) for path, file in options.overlay.items()}
        self._go_on_from(Version.of(State.restored(command, overlay), Run.load(folder), options))

    def _check_files(self) -> None:
        for path, known in self.progress.files.items():
            if digest_of(path) != known:
                raise AdvisorError(
                    f"{path} was changed since this session began, and its fixes were made for what it was: start a "
                    "new session."
                )

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._session.folder)

    def _store(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._began
        self._began = now
        self._session.store(self.progress)


# How a patched script can fail; the error follows.
_FAILURES = {
    "oom": "out of memory",
    "exception": "the patched script failed",
    "exit": "the patched script failed",
    "timeout": "the patched script took far longer than without the fix",
    "killed": "the patched script was killed",
}
# The same change gives the same crash again, and the same wrong numbers; memory may have become free meanwhile.
_FINAL = ("exception", "exit", "nan", "numerics")


def _said(trial: Trial) -> str:
    measured, speedup = trial.measured, trial.predicted.speedup
    if measured is None:
        return f"{trial.status}: {trial.reason}"
    return (
        f"{trial.status}: {measured.speedup:.2f}× ({measured.low:.2f}–{measured.high:.2f}), predicted "
        f"{speedup.low:.2f}–{speedup.high:.2f}×; {trial.reason}"
    )
