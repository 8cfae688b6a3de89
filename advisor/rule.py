"""The vocabulary that every rule speaks: ``Rule``, ``Finding``, ``Gain``, ``Safety``, ``Fix``.

A rule is one file under ``rules/`` with one subclass of :class:`Rule`; its docstring is its documentation.
"""

from __future__ import annotations

import enum
import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from advisor.harness.layout import CallSite, Site

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Change, Estimate, Evidence

# The least likely speedup worth a finding: below it the timing window, which repeats to about 3 % on a quiet
# machine, could not tell a kept fix from none.
WORTH_IT = 1.03


# The same on a CPU, which the script shares with whatever else runs: quarters of timing windows of one script on two
# cores lie up to 6 % apart (tests/benchmarks/results/timing_window.md).
WORTH_IT_ON_CPU = 1.05

WIDEST = 2.0  # high / low of a prediction never exceeds this
# Of the likely gain, on a logarithmic scale, and how much larger it comes out, at most: see Gain.as_measured.
_OFF, _LARGER, _MOST_LARGER = 0.4, 0.1, 1.15


class Safety(enum.Enum):
    """What a fix may change besides speed."""

    EXACT = "exact"  # same batches, same arithmetic
    NUMERIC = "numeric"  # rounding changes
    BEHAVIOUR = "behaviour"  # training dynamics change


@dataclass(frozen=True)
class Gain:
    """Predicted speedup: old time per sample over new time per sample, 1.0 = no change.

    ``low`` ≤ ``likely`` ≤ ``high``. ``basis`` says where it comes from: ``"model"`` (the what-if replay of
    this very run) or the source of a prior. ``one_time_s`` is paid once (a compilation, say).
    """

    low: float
    likely: float
    high: float
    basis: str = "model"
    one_time_s: float = 0.0

    @classmethod
    def of(cls, estimate: Estimate, one_time_s: float = 0.0, basis: str = "model") -> Gain:
        """The gain that the what-if model predicts."""
        low, likely, high = estimate.speedup
        return cls(low, likely, high, basis, one_time_s)

    @classmethod
    def prior(cls, estimate: Estimate, basis: str, one_time_s: float = 0.0) -> Gain:
        """The gain that the model predicts from a prior: it may be none, as far as a range twice as wide can say."""
        low, likely, high = estimate.speedup
        return cls(max(min(1.0, low), high / WIDEST), likely, high, basis, one_time_s)

    @classmethod
    def of_pauses(cls, period: float, saved: float, steps: float, basis: str) -> Gain:
        """The gain where of each `period` seconds `saved` go away; `steps` are those that stay whatever happens.

        The seconds that go to pauses are a mean of few: 0.9 of them for certain, 1.05 at most.
        """
        likely = period / (period - saved)
        low = max(period / (period - 0.9 * saved), likely / 1.4)
        return cls(low, likely, min(WIDEST * low, period / max(period - 1.05 * saved, steps)), basis)

    @classmethod
    def of_less(cls, estimate: Estimate, share: float, basis: str) -> Gain:
        """The gain where `share` of the work is enough: `estimate` is of a batch smaller by that, per sample of it."""
        low, likely, high = (each / share for each in estimate.speedup)
        likely = max(likely, 1.0)
        high = max(high, likely)
        return cls(min(likely, max(low, high / WIDEST, 1.0)), likely, high, basis)

    def as_measured(self) -> Gain:
        """The same as predictions on a CPU were seen to come out: a little larger, in a range at least as wide.

        Of 77 fixes measured on two shared cores (tests/benchmarks/results/accuracy_other_processor.md) 49 came out in
        the ranges that rules and model give, and 54 in these; those below and above are a factor of 1.05 to 2 away,
        more for large gains. What stays of a step runs faster, too, once something else no longer takes its caches:
        of the gains outside, 23 of 28 were larger there, 22 of 29 and 13 of 17 on two more processors (accuracy.md).
        Over a likely 2.4 the median of 30 was 1.2 times what was likely, below that 1.04 times.
        """
        if self.likely <= 1.0:
            return self
        off = min(self.likely**_OFF, WIDEST**0.5)
        larger = min(self.likely**_LARGER, _MOST_LARGER)
        likely = self.likely * larger
        low, high = min(self.low, self.likely / off), max(self.high, self.likely * off) * larger
        if high > WIDEST * low:
            low, high = likely / WIDEST**0.5, likely * WIDEST**0.5
        return replace(self, low=low, likely=likely, high=high)

    @property
    def worth_it(self) -> bool:
        """Whether the likely speedup is large enough to be reported, and could be measured."""
        return self.likely >= WORTH_IT

    def pays_back_after(self, step_s: float) -> int | None:
        """Steps after which ``one_time_s`` is earned back at the likely speedup; None when never or at once."""
        if not self.one_time_s or self.likely <= 1.0 or step_s <= 0:
            return None
        return round(self.one_time_s / (step_s - step_s / self.likely)) + 1


@dataclass(frozen=True)
class Argument:
    """A fix on the script's command line: the options to add or replace, e.g. ``{"--batch-size": "256"}``.

    An empty value is a flag. ``text`` is what to consider besides.
    """

    options: Mapping[str, str]
    text: str = ""


@dataclass(frozen=True)
class Variable:
    """A fix in the environment of the script."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Advice:
    """A fix that no safe edit exists for: what to do, and where, in sentences; ``why`` no edit was made."""

    text: str
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing that holds the step back, with the numbers that say so.

    ``evidence`` maps a figure's name (with its unit where it is not seconds, bytes or a share) to its value.
    ``site`` is where the fix goes, when known. ``parameters`` is what ``fix`` needs (the number of workers …).
    """

    rule: str
    title: str
    summary: str  # one or two sentences: what was measured, in figures
    gain: Gain
    evidence: Mapping[str, float | int | str | bool | None]
    site: Site | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()  # preconditions that turn the fix into advice: sentences
    safety: Safety | None = None  # where it is not the rule's own: a loader whose transforms draw random numbers


@dataclass(frozen=True)
class Example:
    """A rule's own test case: ``fix`` applied to ``before`` must give ``after``.

    The call whose site the finding names is marked in ``before`` by the comment ``# <-`` on its first line
    (stripped before use); ``parameters`` are the finding's. A comment ``# <- name`` marks a site that the finding has
    in ``parameters["name"]``, a tuple of sites in the order of the text (``# <- a, b``
    marks two, ``# <- a=f(x)`` the call ``f(x)`` with its columns). ``options`` are what the fix sets on the
    command line instead of an edit; ``after`` is then ``before``. For a fix that only its author can write, ``advice``
    is a piece of what the advice must say, and ``after`` is unused.
    """

    before: str
    after: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


class Rule(ABC):
    """One diagnosis. Subclass it in a file of its own under ``rules/``; nothing else needs to be touched."""

    id: ClassVar[str]
    title: ClassVar[str]
    safety: ClassVar[Safety]
    after: ClassVar[tuple[str, ...]] = ()  # rules whose fixes should come first
    conflicts: ClassVar[tuple[str, ...]] = ()  # rules whose fixes exclude this one
    takes_memory: ClassVar[bool] = False  # out of memory, its fix is tried once more with a smaller batch
    fallback: ClassVar[bool] = False  # reported only where no other rule explains what it does
    of_operators: ClassVar[bool] = False  # it makes the model's own operators faster, and explains nothing beside them
    EXAMPLES: ClassVar[tuple[Example, ...]] = ()
    LEAVES_ALONE: ClassVar[tuple[Example, ...]] = ()  # `after` unused: no edit must come out

    @abstractmethod
    def check(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield what the numbers of this run support; nothing when they do not."""

    @abstractmethod
    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Variable | Advice:
        """The change that `finding` asks for, at its recorded site, or advice where no safe edit exists."""

    def search(self, finding: Finding) -> tuple[Finding, ...]:
        """What the loop tries for `finding`, one after another for as long as each is faster than the one before.

        Most rules know what to change: the finding alone. A size that only trying finds has several.
        """
        return (finding,)

    def relieve(self, evidence: Evidence) -> Finding | None:
        """A finding whose fix takes memory away, for the sake of another rule's; None where this rule has none."""
        return None

    @classmethod
    def documentation(cls) -> str:
        """The rule's docstring, dedented."""
        return inspect.cleandoc(cls.__doc__ or "")


def call_sites(evidence: Evidence, *kinds: str, every_step: bool = True) -> tuple[CallSite, ...]:
    """The recorded call sites of these kinds; with `every_step` those reached about once a step or more.

    Without a record they are those that were read from the source, if it was given.
    """
    recorded = evidence.record.call_sites if evidence.record is not None else evidence.source_sites
    # Half a call per step: two branches that take turns still count, a print every ten steps does not.
    return tuple(each for each in recorded if each.kind in kinds and (not every_step or each.calls_per_step >= 0.5))


def forward_sites(evidence: Evidence) -> tuple[CallSite, ...]:
    """Where each step calls the script's models; loss modules and others without parameters aside.

    In training those that gradients flow through, where there are any: an evaluation every few steps adds up to one
    call a step, too.
    """
    found = call_sites(evidence, "Module.call")
    models = (
        {model.cls for model in evidence.record.models if model.parameters} if evidence.record is not None else set()
    )
    found = tuple(each for each in found if not models or each.details.get("module", "") in {*models, ""})
    learning = tuple(each for each in found if each.details.get("grad", True))
    return learning if evidence.trains and learning else found


def unless_source(evidence: Evidence, *unknown: str) -> tuple[str, ...]:
    """What only a run could tell: unmet for a bare trace's fix, unless its script is at hand, whose user can judge."""
    return unknown if evidence.record is None and not evidence.source else ()


def once_fed(evidence: Evidence, change: Change) -> tuple[Estimate, str]:
    """The estimate for a change of the step's own work, and a sentence to add to the summary.

    A bare trace is not measured again after its first fix: where it waits for data, the estimate is for the step that
    no longer does, or nothing but the loader would ever be found.
    """
    ready = evidence.record is None and evidence.bound == "input"
    said = " The prediction is for the step once it no longer waits for data." if ready else ""
    return evidence.what_if(change, data_ready=ready), said


def serving_engine(evidence: Evidence) -> str:
    """``vllm`` or ``sglang`` where their operators are in the steps; else empty."""
    names = [row.name for row in evidence.operators]
    return next((engine for engine, prefix in _ENGINES.items() if any(n.startswith(prefix) for n in names)), "")


_ENGINES = {"vllm": ("vllm::", "_C_cache_ops::"), "sglang": ("sgl_kernel::", "sglang::")}


def optimizer_sites(evidence: Evidence) -> tuple[Site, ...]:
    """Where the script makes its optimizers."""
    if evidence.record is None:
        return sites(call_sites(evidence, "Optimizer", every_step=False))
    return tuple(each.site for each in evidence.record.optimizers if each.site is not None)


def sites(found: tuple[CallSite, ...]) -> tuple[Site, ...]:
    """Where those calls are."""
    return tuple(each.site for each in found)


def site_list(finding: Finding, name: str) -> tuple[Site, ...]:
    """The sites that a finding carries under `name` in its parameters; empty when it has none."""
    value = finding.parameters.get(name, ())
    return value if isinstance(value, tuple) else ()


def own_files(evidence: Evidence) -> tuple[str, ...]:
    """The user's own files that modules of the script come from."""
    models = evidence.record.models if evidence.record is not None else []
    return tuple(dict.fromkeys(path for model in models for path in model.own.values()))


def model_files(evidence: Evidence) -> tuple[str, ...]:
    """The user's own files that deal with models: the script, those that call one, and those of their classes."""
    script = evidence.record.script if evidence.record is not None else ""
    calls = (each.site.file for each in forward_sites(evidence))
    return tuple(dict.fromkeys(filter(None, (script, *calls, *own_files(evidence)))))


def optimizer_files(evidence: Evidence, text_of: Callable[[str], str]) -> tuple[str, ...]:
    """The user's own files that an optimizer's class is written in; `text_of` gives a file's text."""
    if evidence.record is None:
        return ()
    classes = "|".join(re.escape(each.cls) for each in evidence.record.optimizers) or "$^"
    written = re.compile(rf"^[ \t]*class ({classes})\b", re.MULTILINE)
    return tuple(path for path in evidence.record.modules if written.search(text_of(path)))


def epoch_steps(evidence: Evidence) -> int | None:
    """How many batches an epoch has, of the loader that the steps wait for most; None where that is not known."""
    return next((each.batches for each in evidence.loaders if each.batches), None)


def number_of(finding: Finding, name: str) -> int | None:
    """The whole number that a finding carries under `name` in its parameters."""
    value = finding.parameters.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def file_list(finding: Finding, name: str) -> tuple[str, ...]:
    """The files that a finding carries under `name` in its parameters; empty when it has none."""
    value = finding.parameters.get(name, ())
    return value if isinstance(value, tuple) else ()


def framework_of(owner: str) -> str:
    """``transformers``, ``lightning`` or ``accelerate`` when a module of theirs made the object; else empty."""
    top = owner.partition(".")[0]
    return {"pytorch_lightning": "lightning"}.get(
        top, top if top in ("transformers", "lightning", "accelerate") else ""
    )


def where(site: Site | None) -> str:
    """The same with its preposition: "at train.py:41", "in your script"."""
    return f"at {at(site)}" if site is not None and site.file else "in your script"


def at(site: Site | None) -> str:
    """A place in words: "train.py:41"; "your script" where it is not known."""
    return f"{os.path.basename(site.file)}:{site.line}" if site is not None and site.file else "your script"


def by_way_of(site: Site, frames: Sequence[Site]) -> str:
    """Who calls the function that `site` is in, of the `frames` it was seen in, in words; "" where it is not known."""
    callers = [each for each in frames[1:] if each.function != site.function]
    return f", called at {at(callers[0])}" if callers else ""
