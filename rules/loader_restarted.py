"""A new iterator of the loader is made for every batch, of which it gives the first one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.callers import own_method
from advisor.edit.loading.datasets import told_in_loop
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import ensure_name, fresh_name, last_part, own_attribute
from advisor.edit.origins.values import bound_to
from advisor.edit.scopes import is_target, self_assignments
from advisor.evidence.loading.fetching import begins_anew
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.edit.draft import Statement
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts

_LEAST_SHARE = 0.05  # of the step
# Four scripts gained 1.1 to 1.9 times what was likely: what stays of a step is disturbed by what goes.
_LESS, _MORE = 1.2, 1.6
# Of a million samples the permutation is a list of a million numbers, which the garbage collector goes through, and the
# caches are full of: a row of tensors in memory takes that long without it (advisor.evidence.loading.bulk: 5 us a
# tensor).
_ROW_S = 7e-6
# What the step itself takes, of what it took beside workers that start, and make batches that nobody takes.
_UNDISTURBED = 0.6
_BASIS = "what starting takes, by the run: the wait beyond the making of a batch"
_SEEDS = re.compile(r"(?i)seed")


class LoaderRestarted(Rule):
    """Each step asks the loader for a new iterator, takes one batch of it, and throws it away: ``next(iter(loader))``.

    A new iterator begins an epoch: it draws a permutation of all samples, starts the workers where there are some, and
    has each of them make two batches, of which one is used. And every batch is drawn from all samples anew, so that
    some are seen often and others never; without shuffling each step even gets the same first batch. One iterator for
    all steps, that begins anew only when an epoch is over, costs that once an epoch. Reported where the run has seen as
    many iterators as batches, of a loader that has many more to give.

    When not: one batch is wanted, to overfit on or to look at; then it is to be taken once, before the loop.

    Source: PyTorch docs, ``torch.utils.data``, "Single- and Multi-process Data Loading": "each time an iterator of a
    DataLoader is created, num_workers worker processes are created". The gain is measured but for what workers leave.
    """

    id = "loader-restarted"
    title = "Keep the loader's iterator from one step to the next"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader, step_s = facts.record, evidence.step_s
            if loader is None or not step_s or not begins_anew(loader):
                continue
            collected = evidence.record.timing.gc_s if evidence.record is not None and not facts.workers else None
            saved = min(0.95 * step_s, facts.wait_s - _stays(evidence, facts, step_s) + (collected or 0.0))
            if saved < _LEAST_SHARE * step_s:
                continue
            likely = step_s / (step_s - saved)
            gain = Gain(max(1.0, likely / _LESS), likely, likely * _MORE, _BASIS)
            started = f", starts {facts.workers} worker{'s' if facts.workers != 1 else ''}" if facts.workers else ""
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"Each step begins a new epoch of {loader.batches} batches{started}, and takes one batch of it "
                f"({where(loader.iterated)}): {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) of the step.",
                gain=gain,
                evidence={
                    "data_wait_s": facts.wait_s,
                    "data_wait_share": facts.wait_share,
                    "fetch_s": facts.fetch_s,
                    "iterators": loader.epochs,
                    "batches": loader.fetched,
                    "batches_per_epoch": loader.batches,
                    "step_s": step_s,
                },
                site=loader.iterated or loader.site,
                parameters={"shuffles": loader.shuffle is not False, "sampler": loader.sampler},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        site = finding.site
        text = (
            f"Make one iterator before the steps, not one in each of them {where(site)}, and the next one when it is "
            "over: batches = itertools.chain.from_iterable(itertools.repeat(loader)), and next(batches)."
        )
        if site is None:
            return Advice(text, "its place is unknown")
        if finding.parameters.get("shuffles") is False:
            return Advice(
                f"The loader does not shuffle: each step gets its first batch, the same each time, {where(site)}. "
                f"Take it once, before the steps, if that is meant. Else: {text[0].lower()}{text[1:]}",
                "which of the two is meant only the author can tell",
            )
        if sampler := finding.parameters.get("sampler"):
            return Advice(
                f"{text} Or have {sampler} draw no more samples than the step takes, if it goes by what has changed "
                "since the last one.",
                f"whether {sampler} may go on where it was only its author can tell",
            )
        drafts = Drafts(sources)
        why = _keep(drafts[site.file], call_at(drafts[site.file], site, ("iter",)))
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def train(net, loader, steps):
    for step in range(steps):
        x, y = next(iter(loader))  # <-
        update(net, x, y)
""",
            after="""
import torch
import itertools

def train(net, loader, steps):
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for step in range(steps):
        x, y = next(batches)
        update(net, x, y)
""",
        ),
        Example(
            before="""
import itertools
from torch.utils.data import DataLoader

class Source:
    def __init__(self, data, size):
        self.loader = DataLoader(data, size, shuffle=True, num_workers=2)
        self.drawn = 0

    def draw(self):
        self.drawn += 1
        return next(iter(self.loader))  # <-
""",
            after="""
import itertools
from torch.utils.data import DataLoader

class Source:
    def __init__(self, data, size):
        self.loader = DataLoader(data, size, shuffle=True, num_workers=2)
        self.batches = itertools.chain.from_iterable(itertools.repeat(self.loader))
        self.drawn = 0

    def draw(self):
        self.drawn += 1
        return next(self.batches)
""",
        ),
        Example(
            before="for step in range(9):\n    x = next(iter(loader))  # <-\n",
            after="",
            parameters={"shuffles": False},
            advice="the same each time",
        ),
        Example(  # which draws by priorities that each step changes
            before="for step in range(9):\n    x = next(iter(loader))  # <-\n",
            after="",
            parameters={"sampler": "PrioritySampler"},
            advice="have PrioritySampler draw no more samples",
        ),
    )
    LEAVES_ALONE = (
        Example(  # another loader in each round
            "for data in several:\n    loader = DataLoader(data)\n    x = next(iter(loader))  # <-\n", ""
        ),
        Example("for step in range(9):\n    it = iter(loader)  # <-\n    x = next(it)\n", ""),
        Example("for step in range(9):\n    x = next(iter(DataLoader(data)))  # <-\n", ""),
        Example("def sample(loader):\n    return next(iter(loader))  # <-\n", ""),
        *(  # another loader in each round, or the same batches again
            Example(
                f"import torch\n{first}for step in range(9):\n    {line}\n        x = next(iter(loader))  # <-\n", ""
            )
            for first, line in (
                ("", "with several[step] as loader:"),
                ("", "if (loader := pick(step)):"),
                ("def grow():\n    global loader\n    loader = make()\n\n", "if grow():"),
                ("", "if torch.manual_seed(0):"),
                ("loader = DataLoader(buffer)\n", "buffer.append(step)\n    if ready:"),
            )
        ),
        Example(
            "class Run:\n    def reset(self):\n        self.loader = make()\n\n    def fit(self):\n"
            "        for step in range(9):\n            self.reset()\n            x = next(iter(self.loader))  # <-\n",
            "",
        ),
        Example("def draw(loader):\n    for row in next(iter(loader)):  # <-\n        yield row\n", ""),
        Example("for step in range(9):\n    x = next(iter(loader))  # <-\n", "", {"shuffles": False}),
        Example(
            "class Batches:\n    def reset(self):\n        self.loader = make()\n\n    def __init__(self):\n"
            "        self.loader = make()\n\n    def draw(self):\n        return next(iter(self.loader))  # <-\n",
            "",
        ),
    )


def _stays(evidence: Evidence, facts: LoaderFacts, step_s: float) -> float:
    """Seconds that a step waits for its batch once the iterator is kept, beside what it computes now."""
    fetch_s, computes_s, loader = facts.fetch_s or 0.0, max(0.0, step_s - facts.wait_s), facts.record
    if not facts.workers:
        if loader is not None and loader.in_memory:
            fetch_s = min(fetch_s, _ROW_S * (loader.batch_size or 1) * max(1, len(loader.tensors)))
        return min(fetch_s, facts.wait_s)
    cores = evidence.record.environment.usable_cpus if evidence.record is not None else 1.0
    alone_s = _UNDISTURBED * computes_s
    lasts_s = max(alone_s, fetch_s / facts.workers, ((facts.fetch_cpu_s or fetch_s) + alone_s) / max(1.0, cores))
    return lasts_s - computes_s  # less than nothing where the step itself gets shorter


def _keep(draft: Draft, call: cst.Call | None) -> str:
    """Have ``next(iter(loader))`` read an iterator that is made before the loop, or with the loader; else why not."""
    arg = draft.parent(call) if call is not None else None
    taken = draft.parent(arg) if isinstance(arg, cst.Arg) else None
    if call is None or not isinstance(taken, cst.Call) or len(call.args) != 1:
        return "it is not next(iter(loader)) there"
    if not isinstance(taken.func, cst.Name) or taken.func.value != "next" or taken.args[0] is not arg:
        return "it is not next(iter(loader)) there"
    loader = call.args[0].value
    own = bool(own_attribute(loader))
    if not isinstance(loader, cst.Name) and not own:
        return "the loader has no name that is the same in all steps"
    before = _loop(draft, call, loader)
    if before is not None and (why := _differs(draft, before, loader)):
        return why
    after = _made(draft, call, cst.ensure_type(loader, cst.Attribute)) if own and before is None else None
    if before is None and after is None:
        return "where the loader is made, before the steps, was not found"
    name = fresh_name(draft, "batches")
    written = name if before is not None else f"self.{name}"
    chain, repeat = (ensure_name(draft, f"itertools.{each}") for each in ("chain", "repeat"))
    line = f"{written} = {chain}.from_iterable({repeat}({draft.code(loader)}))"
    if before is not None:
        draft.insert_before(before, line)
    elif after is not None:
        draft.insert_after(after, line)
    draft.replace(taken, f"next({written})")  # which never ends: no default is needed
    return ""


def _loop(draft: Draft, call: cst.Call, loader: cst.BaseExpression) -> Statement | None:
    """The outermost loop around the call, in its function, in which the loader is the same."""
    found: Statement | None = None
    for above in draft.ancestors(call):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.BaseComp)):
            break
        if isinstance(above, (cst.For, cst.While)):
            inside = above.body if isinstance(above, cst.For) else above
            if call not in draft.nodes(cst.Call, inside):
                continue  # what a loop goes through is asked for once
            if any(is_target(draft, each) for each in _named(draft, loader, above)):
                break
            found = above if draft.block(above) is not None else found
    return found


def _named(draft: Draft, loader: cst.BaseExpression, within: cst.CSTNode) -> list[cst.Name | cst.Attribute]:
    """Where the loader is named there."""
    nodes: list[cst.Name | cst.Attribute] = [*draft.nodes(cst.Name, within), *draft.nodes(cst.Attribute, within)]
    return [each for each in nodes if draft.code(each) == draft.code(loader)]


def _differs(draft: Draft, loop: Statement, loader: cst.BaseExpression) -> str:
    """Why an iterator that goes on would give other batches than one that begins anew in each round, or "".

    The loop draws the same ones by a seed, or calls what makes another loader; or the dataset is told something.
    """
    called = {last_name(draft, each) for each in draft.nodes(cst.Call, loop)}
    if seeds := sorted(each for each in called if _SEEDS.search(each)):
        return f"the loop calls `{seeds[0]}`, maybe to have the same batches again"
    for function in draft.nodes(cst.FunctionDef):
        items = [item.name.value for each in draft.nodes(cst.Global, function) for item in each.names]
        sets = isinstance(loader, cst.Attribute) and any(
            is_target(draft, each) for each in _named(draft, loader, function)
        )
        if function.name.value in called and (sets or draft.code(loader) in items):
            return f"the loop calls `{function.name.value}`, which makes another loader"
    made = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    told = (told_in_loop(draft, each) for each in made if bound_to(draft, each) == last_part(loader))
    heard = next(filter(None, told), "")
    return f"an iterator that goes on may not hear of `{heard}`" if heard else ""


def _made(draft: Draft, call: cst.Call, loader: cst.Attribute) -> Statement | None:
    """The statement of ``__init__`` that gives the object its loader, the only one in the class."""
    holder = draft.enclosing_class(call)
    made = own_method(holder, "__init__") if holder is not None else None
    if holder is None or made is None or len(self_assignments(draft, holder, loader.attr.value)) != 1:
        return None
    for target in draft.nodes(cst.AssignTarget, made):
        statement = draft.statement(target)
        if draft.code(target.target) == draft.code(loader) and statement is not None:
            return statement if draft.block(statement) is made.body else None
    return None
