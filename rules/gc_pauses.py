"""Python's garbage collector runs inside the steps, and they wait for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.every import every_of
from advisor.edit.locate import call_at
from advisor.edit.origins.values import EDITED, give_value
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    forward_sites,
    site_list,
    sites,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Timing

# Steps with a call of gc.collect() in the timing window, and steps at all for Python's own collections: how often rarer
# ones come, the window cannot say.
_LEAST_STEPS = 3
# What a step computes beside a collection of 42 and of 165 ms took 1.4 and 6.4 ms; without it 0.7 and 5.5.
_COLD_FROM_S, _COLD_SHARE, _COLD_S = 4e-3, 0.35, 0.8e-3
_OFTEN = 0.1  # of the calls of the place with the most: a library's own, at its start, say, is none of the step's
# What a collection gives is at most added up.
_COUNTED = m.Expr(m.Call()) | m.AugAssign(operator=m.AddAssign(), value=m.Call())
_EVERY = 200  # steps: what a collection in every step becomes, where what it gives is kept
_SWITCHED_OFF = re.compile(r"\bgc\.(disable\(|set_threshold\(\s*0\b)|import\s.*\bdisable\b")
# Python's own collections come where objects are made: without them the memory is freed later, and no faster. 6 % of a
# step with a compiled model went to them; with gc.freeze() before the loop it was as long as before.
_LEAST_OWN = 1.10


class GcPauses(Rule):
    """Steps pause while Python looks for unreachable cycles among all of its objects.

    A full collection visits every container object of the process, several hundred thousand once PyTorch is
    imported, which takes tenths of a second whatever there is to find. Tensors do not need it: reference counting frees
    them, and their memory, at once. ``gc.collect()`` in the loop is usually there to keep memory low, and does not.
    Python's own collections are rarer, but a step that makes thousands of lists, dicts or objects sets them off. The
    time is measured in the undisturbed steps, by ``gc.callbacks``.

    When not: objects in cycles hold large tensors (a traceback that was kept, a module with hooks on itself), and
    memory grows without the call: then break the cycle, or collect once an epoch. Where the script counts what a
    collection gives, the fix is to collect every few hundred steps.

    Source: Python, "Garbage Collector interface" (``gc.callbacks``, ``gc.freeze``, generations); torchtitan and
    Megatron-LM switch the automatic collector off in training, and collect every so many steps.
    """

    id = "gc-pauses"
    title = "Do not collect garbage inside the steps"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        timing = evidence.record.timing if evidence.record is not None else None
        if timing is None or not timing.gc_s:
            return
        asked = timing.gc_asked_s or 0.0
        places = _often(call_sites(evidence, "gc.collect", every_step=False))
        if places and asked and timing.gc_asked_steps >= _LEAST_STEPS:
            gain = Gain.of(evidence.what_if(Change(remove_host_s=asked + _cold_s(evidence, asked))))
            if gain.worth_it:
                yield Finding(
                    rule=self.id,
                    title=self.title,
                    summary=f"Each step spends {asked * 1e3:.1f} ms in gc.collect(), called at "
                    f"{', '.join(at(each.site) for each in places)}.",
                    gain=gain,
                    evidence={"gc_collect_s": asked, "gc_s": timing.gc_s, "step_s": evidence.step_s},
                    site=places[0].site,
                    parameters={"collects": sites(places)},
                )
        if timing.from_profile or timing.steps < _LEAST_STEPS:
            return  # the profiler makes objects of its own, and one full collection among few steps is chance
        own = max(0.0, timing.gc_s - asked - _longest_pause_s(timing))
        gain = Gain.of(evidence.what_if(Change(remove_host_s=own)))
        if gain.likely >= _LEAST_OWN:
            forwards = forward_sites(evidence)
            yield Finding(
                rule=self.id,
                title="Keep automatic garbage collection out of the steps",
                summary=f"Python's automatic garbage collection takes {own * 1e3:.1f} ms of each step: the step makes "
                "many objects that stay for a while.",
                gain=gain,
                evidence={"gc_s": own, "step_s": evidence.step_s},
                site=forwards[0].site if forwards else None,
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        found = site_list(finding, "collects")
        if not found:
            return Advice(
                "Call gc.collect() and gc.freeze() before the loop over steps, so that what is there by then is not "
                "looked at again; if that is not enough, gc.disable() there, and gc.collect() every few hundred steps.",
                "how much memory waits for a collection is not known",
            )
        text = f"Leave collecting to Python: no gc.collect() at {', '.join(dict.fromkeys(at(site) for site in found))}."
        drafts = Drafts(sources)
        if any(_SWITCHED_OFF.search(drafts[site.file].source.text) for site in found):
            return Advice(
                f"Collect every few hundred steps only, at {', '.join(dict.fromkeys(at(site) for site in found))}.",
                "the script has switched automatic collection off, and how much memory waits is not known",
            )
        removed = Counter[str]()
        for site in found:
            draft = drafts[site.file]
            call = call_at(draft, site, ("collect",))
            if call is not None and _remove(draft, call):
                removed[site.file] += 1
            elif call is None or not _seldom(drafts, draft, call):
                return Advice(text, f"the call at {at(site)} is no statement of its own in the script")
        if not removed:
            text = f"Collect garbage every {_EVERY} steps only, at {', '.join(dict.fromkeys(map(at, found)))}."
        for path, number in removed.items():
            _forget_import(drafts[path], number)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import gc

import torch

def train(loader):
    for x, y in loader:
        loss = step(x, y)
        gc.collect()  # <- collects
        log(loss)
""",
            after="""
import torch

def train(loader):
    for x, y in loader:
        loss = step(x, y)
        log(loss)
""",
        ),
        Example(  # a group's comment stays
            before="""
import gc

# Third party
import torch

for x in xs:
    step(x)
    gc.collect()  # <- collects
""",
            after="""
# Third party
import torch

for x in xs:
    step(x)
""",
        ),
        Example(  # what it gives is counted: seldom, then, by the number that decides it
            before="""
import gc

TIDY_EVERY = 1

def on_step_end(self, step):
    if step % TIDY_EVERY == 0:
        self.freed += gc.collect()  # <- collects
""",
            after="""
import gc

TIDY_EVERY = 200

def on_step_end(self, step):
    if step % TIDY_EVERY == 0:
        self.freed += gc.collect()
""",
        ),
        Example(
            before="""
import torch

# standard library
import gc
import os

for x in xs:
    step(x)
    # at most 4 GB of host memory
    gc.collect()  # <- collects
""",
            after="""
import torch

# standard library
import os

for x in xs:
    step(x)
""",
        ),
    )
    LEAVES_ALONE = (
        Example(
            "import gc\n\ngc.disable()\nfor i, x in enumerate(xs):\n    step(x)\n    if i % 10 == 0:\n"
            "        gc.collect()  # <- collects\n",
            "",
        ),
        Example("for x in xs:\n    step(x)\n    freed = gc.collect()  # <- collects\n", ""),
        Example("trainer.fit(model)  # <- collects\n", ""),
    )


def _cold_s(evidence: Evidence, collecting_s: float) -> float:
    """Seconds per step that computing takes longer because a collection has just gone through all objects."""
    rest = (evidence.step_s or 0.0) - collecting_s
    if evidence.device_is_gpu or collecting_s < _COLD_FROM_S or rest <= 0.0:
        return 0.0
    return min(_COLD_SHARE * rest, _COLD_S)


def _longest_pause_s(timing: Timing) -> float:
    """Seconds per step that the longest step took more than the usual: one collection, of what a compiler left behind,
    say, does not tell how often there is one."""
    if not timing.intervals or timing.median_s is None:
        return 0.0
    return max(0.0, max(timing.intervals) - timing.median_s) / len(timing.intervals)


def _remove(draft: Draft, call: cst.Call) -> bool:
    """Have the statement that is this call removed, with an ``if`` around it that holds nothing else."""
    statement = draft.statement(call)
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    small = statement.body[0]
    if not (isinstance(small, cst.Expr) and small.value is call):
        return False
    around = draft.parent(draft.block(statement) or statement)
    alone = isinstance(around, cst.If) and len(draft.siblings(statement)) == 1 and around.orelse is None
    if isinstance(around, cst.If) and alone and draft.statement(around) is around and _plain(around.test):
        draft.remove(around)
    else:
        draft.remove(statement)
    return True


def _seldom(drafts: Drafts, draft: Draft, call: cst.Call) -> bool:
    """Have the collection be made every so many steps, where it is already under such a condition: of each step."""
    for around in draft.ancestors(call):
        if isinstance(around, (cst.FunctionDef, cst.For, cst.While)):
            return False
        if isinstance(around, cst.If) and (every := every_of(around.test)) is not None:
            statement = draft.statement(call)
            alone = statement is not None and draft.siblings(statement) == [statement] and around.orelse is None
            counts = isinstance(statement, cst.SimpleStatementLine) and m.matches(statement.body[0], _COUNTED)
            return alone and counts and give_value(drafts, draft, every, str(_EVERY), 1, alone=True) == EDITED
    return False


def _often(places: Sequence[CallSite]) -> tuple[CallSite, ...]:
    """Those that are called in about every step, as the one that is called the most."""
    most = max((each.calls_per_step for each in places), default=0.0)
    return tuple(each for each in places if each.calls_per_step >= _OFTEN * most)


def _plain(test: cst.BaseExpression) -> bool:
    """A condition that only asks: leaving it out changes nothing."""
    return not m.findall(test, m.Call() | m.NamedExpr() | m.Await())


def _forget_import(draft: Draft, removed: int) -> None:
    """Have ``import gc`` removed where the calls that go were its only uses."""
    uses = [name for name in draft.nodes(cst.Name) if name.value == "gc"]
    for statement in draft.module.body:
        alone = m.matches(statement, m.SimpleStatementLine([m.Import([m.ImportAlias(m.Name("gc"), asname=None)])]))
        if isinstance(statement, cst.SimpleStatementLine) and alone and len(uses) == removed + 1:
            draft.remove(statement, comments=False)  # those above an import are about its group
