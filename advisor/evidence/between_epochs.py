"""What stops the steps again and again and is no evaluation, no checkpoint, no compilation: where it is, how long."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.set_aside import Pauses
from advisor.harness.timing import whole_period

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Pause, RunRecord, Site

_MOSTLY = 0.7  # of the samples: so many agree on a line, from the outermost inwards
_LEAST_SEEN = 2  # steps that were stopped
_NAMED = {"evaluation": 12, "checkpoint": 0}  # the lines from which these are reached are known, and go on for so many
_OWN = ("compilation",)  # what runs then is the compiler
_STEP, _EACH_STEP = ("backward", "Optimizer.step", "Module.call", "zero_grad"), 0.5
_FUNCTIONS_OF_STEPS = ("forward", "training_step", "compute_loss", "__getitem__", "collate_fn", "collate")
_RUNS = re.compile(r"\.(train|fit)\(")
_BUSY = 0.2  # cores that other programs kept: steps may be long for that


@dataclass(frozen=True)
class Stop:
    """A place at which the script is while the steps stand still.

    Each time it takes ``each_s`` seconds there, and ``period_s`` pass from one to the next, with the ``every`` steps in
    between. ``site`` is the innermost line that most of them were seen at, ``called_from`` the
    user's lines around it.
    """

    site: Site
    called_from: tuple[Site, ...]
    each_s: float
    period_s: float
    every: float

    @property
    def share(self) -> float:
        """Of the time."""
        return self.each_s / self.period_s


def runs_everything(file: str, line: int) -> bool:
    """Whether that line is a framework's call, under which everything is: ``trainer.train()``, ``trainer.fit(…)``."""
    return _RUNS.search(linecache.getline(file, line)) is not None


def stop_of(evidence: Evidence) -> Stop | None:
    """The place where the steps of a run stand still for longest; None where they do not."""
    record = evidence.record
    if record is None or record.timing.from_profile or not record.timing.pauses or not record.timing.step_s:
        return None
    timing = record.timing
    rows = _others(record, _seen(record))
    if whole_period(timing.intervals) > 1 or (timing.others_cores or 0.0) > _BUSY:
        rows = [each for each in rows if each.cause]  # they were profiled with the steps, or other programs' doing
    if not rows:
        return None
    path, here = _path(rows)
    count = len({step for each in here for step in each.steps})
    if count < _LEAST_SEEN:
        return None
    orders = next((at for at, site in enumerate(path) if site.function == "__iter__"), None)
    if orders is not None:  # a sampler that asks for all samples, of whatever these are made
        del path[orders + 1 :]
        here = [each for each in rows if path[-1] in each.sites]
    while len(path) > 1 and path[-1].function.startswith("<"):  # of a comprehension: its function says more
        path.pop()
    beside = sum(timing.aside_counts.values())
    whole_s = timing.elapsed + beside * _middle(record) + sum(timing.aside.values())
    steps = timing.steps + beside
    # What such a step takes as each other one does was spread over all that was seen in it, its own work as well.
    own = [each for each in record.timing.pauses if each not in rows and _is_own(each, _own_places(record))]
    stopped = {step for each in rows for step in each.steps}
    beside_s = _seconds([each for each in own if stopped.issuperset(each.steps)])
    seconds = min(_seconds(here) * (1.0 + beside_s / _seconds(rows)), whole_s - steps * _middle(record))
    return Stop(path[-1], tuple(reversed(path[:-1])), seconds / count, whole_s / count, steps / count)


def _seen(record: RunRecord) -> list[Pause]:
    """What the script was at, without what its steps are: one of them may be long because others hold it up."""
    own = _own_places(record)
    rows = [each for each in record.timing.pauses if each.sites and not each.loading and each.cause not in _OWN]
    rows = [each for each in rows if each.cause or not _is_a_step(each)]
    return [each for each in rows if not _is_own(each, own)]


def _own_places(record: RunRecord) -> set[tuple[str, int]]:
    """The lines that each step comes by: forward, backward, optimizer."""
    own = {
        (each.site.file, each.site.line)
        for each in record.call_sites
        if each.kind in _STEP and each.calls_per_step >= _EACH_STEP
    }
    return {place for place in own if not runs_everything(*place)}


def _is_own(pause: Pause, own: set[tuple[str, int]]) -> bool:
    return any((site.file, site.line) in own for site in pause.sites)


def _is_a_step(pause: Pause) -> bool:
    """Whether a framework, or a model, was at work: of a step that is long, maybe by its batch, and nothing else."""
    inner = pause.sites[0]
    return runs_everything(inner.file, inner.line) or any(site.function in _FUNCTIONS_OF_STEPS for site in pause.sites)


def without_others(record: RunRecord, pauses: Pauses, cause: str) -> Pauses:
    """Of pauses of a `cause` (evaluation, checkpoint) what is just that: something else may be done in them, too."""
    rows = [each for each in record.timing.pauses if each.cause == cause and each.sites and not each.loading]
    whole = _seconds(rows)
    other = _seconds([each for each in _others(record, _seen(record)) if each.cause == cause])
    if not whole:
        return pauses
    beside = pauses.each_s * min(1.0, other / whole)
    return Pauses(pauses.each_s - beside, pauses.every, pauses.steps_s + beside)


def _others(record: RunRecord, rows: Sequence[Pause]) -> list[Pause]:
    """Without what evaluates and saves: steps in which that happens may have been stopped by something else as well.

    Which lines evaluate is known, but for a framework's, under whose one line is everything.
    """
    plain = [each for each in rows if each.cause not in _NAMED]
    known = [each for each in record.call_sites if each.kind in _NAMED]
    functions = {(each.sites[0].file, each.sites[0].function) for each in plain}
    telling = bool(known) and not any(_passes(each, known) for each in plain)
    return plain + [
        each
        for each in rows
        if each.cause in _NAMED
        and ((each.sites[0].file, each.sites[0].function) in functions or (telling and not _passes(each, known)))
    ]


def _passes(pause: Pause, known: Sequence[CallSite]) -> bool:
    """Whether what was seen is on the way to one of these, or goes on behind it in the same function: ``model.eval()``,
    and on the next line what is evaluated."""
    return any(
        (site.file, site.function) == (each.site.file, each.site.function)
        and each.site.line <= site.line <= (each.site.end_line or each.site.line) + _NAMED[each.kind]
        for site in pause.sites
        for each in known
    )


def _middle(record: RunRecord) -> float:
    """What a step takes that nothing stops."""
    return min(record.timing.median_s or 0.0, record.timing.step_s or 0.0)


def _path(rows: Sequence[Pause]) -> tuple[list[Site], list[Pause]]:
    """The lines from the outermost inwards that most of the seconds agree on, and what was seen at the last of them."""
    path: list[Site] = []
    here = list(rows)
    while True:
        lines: dict[tuple[str, int], list[Pause]] = {}
        for each in here:
            if len(each.sites) > len(path):
                site = each.sites[-1 - len(path)]
                lines.setdefault((site.file, site.line), []).append(each)
        if not lines:
            return path, here
        most = max(lines.values(), key=_seconds)
        if path and _seconds(most) < _MOSTLY * _seconds(here):
            return path, here
        path.append(most[0].sites[-1 - len(path)])
        here = most


def _seconds(rows: Sequence[Pause]) -> float:
    return sum(each.seconds for each in rows)
