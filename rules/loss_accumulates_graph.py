"""A running sum or a list of losses keeps the graph of every step alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m
import numpy as np

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.calls import argument, call_method
from advisor.edit.gradients.accumulation import accumulation
from advisor.edit.locate import call_at
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

# The resident set of a process moves by less than this when nothing grows; a step that keeps less is lost in it.
_LEAST_SEEN, _LEAST_A_STEP = 1 << 20, 2 << 10
_SOON = 24 * 3600.0  # seconds: memory that would last for longer is no one's concern
# What is given back after dozens of steps (the meters of an epoch) is a concern where it is so much of the peak.
_LEAST_OF_PEAK = 0.05
# Nothing becomes faster: what two runs of one script differ by.
_NO_FASTER = Gain(0.97, 1.0, 1.03, "what it saves is memory, not time")
_NODE, _WEIGHT = "autograd::engine::evaluate_function", "AccumulateGrad"


class LossAccumulatesGraph(Rule):
    """A running sum of losses, or a list of them, keeps the graph of every step: memory grows until none is left.

    A loss that is added up or kept as it is holds on to all that autograd recorded to compute it, and where no backward
    has used that up, as for a validation loss computed with gradients, to all activations. ``.detach()`` keeps the
    number without its history (``.item()`` too, but waits for a GPU). The step is no faster for it: what is saved is
    memory, and the end of a long training. Reported only where graphs of earlier steps were seen alive, and the memory
    in use grew with each step so that it would be full within a day – or where they were given back after dozens of
    steps, as at an epoch's end, and made more than 5 % of the peak. A running loss on which ``backward`` is called in
    each round, with ``retain_graph=True`` because it fails otherwise, goes through all earlier graphs again: that costs
    time, which is read off the nodes that the backward evaluates more than once.

    When not: the sum is differentiated later, over several steps (gradient accumulation, truncated backpropagation).

    Source: PyTorch FAQ, "My model reports 'cuda runtime error(2): out of memory'": "Don't accumulate history across
    your training loop".
    """

    id = "loss-accumulates-graph"
    title = "Keep losses without their graphs"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        yield from self._growing(evidence)
        yield from self._differentiated_again(evidence)

    def _differentiated_again(self, evidence: Evidence) -> Iterator[Finding]:
        """A running loss whose backward goes through the graphs of all that was added before."""
        again, step_s = _again_s(evidence), evidence.step_s
        places = tuple(each.site for each in call_sites(evidence, "backward")) if again else ()
        gain = Gain.of(evidence.what_if(Change(remove_host_s=again)))
        running = next((site for site in places if _runs_on(site)), None)
        if running is None or not step_s or evidence.device_is_gpu or not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title="Differentiate each loss once",
            summary=f"The backward at {at(running)} goes through the graphs of the losses that were added before, too: "
            f"{again / step_s:.0%} of the step is done a second time or more, and their gradients count as often.",
            gain=gain,
            evidence={"done_again_s": again, "step_s": step_s},
            site=running,
            parameters={"again": True},
            safety=Safety.BEHAVIOUR,
        )

    def _growing(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not evidence.trains or not record.kept_graphs or not step_s:
            return
        growth, capacity = record.growth_bytes or 0.0, evidence.memory.capacity
        if growth < _LEAST_A_STEP or growth * record.growth_steps < _LEAST_SEEN or not capacity:
            return
        peak = evidence.memory.peak or 0
        steps = max(capacity - peak, 0) / growth
        released = all(each.released for each in record.kept_graphs)
        if growth * record.growth_steps < _LEAST_OF_PEAK * peak if released else steps * step_s > _SOON:
            return
        then = f"and is full after {steps:,.0f} more"
        if released:
            then = f"for {record.growth_steps} steps at least before they go, as at an epoch's end"
        places: dict[str, tuple[Site, tuple[Site, ...]]] = {}
        for kept in record.kept_graphs:
            if kept.sites:
                place = _place(tuple(kept.sites))
                places.setdefault(at(place), (place, tuple(kept.sites)))
        for place, frames in places.values():
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"The graphs of earlier steps are still alive ({at(place)}): memory grows by "
                f"{growth / 1e3:,.0f} kB a step, {then}. The step itself is not slower.",
                gain=_NO_FASTER,
                evidence={
                    "growth_per_step_bytes": round(growth),
                    **({"growth_steps": record.growth_steps} if released else {"steps_until_full": round(steps)}),
                    "kept_graphs": sum(each.kept for each in record.kept_graphs),
                    "step_s": step_s,
                },
                site=place,
                parameters={"graph": frames},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("again"):
            text = (
                f"Call backward on this batch's own loss at {at(finding.site)}, without retain_graph, and add up its "
                ".item() for the log: gradients add up by themselves until zero_grad."
            )
            return Advice(text, "the gradients become others: those of each batch count once")
        text = f"Keep what is added up or kept at {at(finding.site)} without its graph: .detach() it first."
        drafts = Drafts(sources)
        found = accumulation(drafts, site_list(finding, "graph"))
        if found is None:
            return Advice(text, "the line that holds on to it was not found in the source")
        if not found.certain:
            return Advice(text, "what of it is a tensor, and keeps a graph, cannot be told from the source")
        call_method(found.draft, found.value, "detach")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
def error(model, x, y):
    return (model(x) - y).square().mean()  # <- graph=model(x)

for step in range(1000):
    loss = error(model, x, y)
    loss.backward()
    unseen = unseen + error(model, held, y)  # <- graph=error(model, held, y)
""",
            after="""
def error(model, x, y):
    return (model(x) - y).square().mean()

for step in range(1000):
    loss = error(model, x, y)
    loss.backward()
    unseen = unseen + error(model, held, y).detach()
""",
        ),
        Example(
            before="""
from torch.nn.functional import mse_loss

curve = []
for step in range(1000):
    train(model)
    curve.append(mse_loss(model(x), y))  # held out  # <- graph=model(x)
""",
            after="""
from torch.nn.functional import mse_loss

curve = []
for step in range(1000):
    train(model)
    curve.append(mse_loss(model(x), y).detach())  # held out
""",
        ),
        Example(
            before="""
for epoch in range(epochs):
    total, correct = 0.0, 0
    for x, y in loader:
        out = model(x)  # <- graph=model(x)
        loss = criterion(out, y)
        loss += 0.1 * penalty
        loss.backward()
        total += loss * len(x)
        correct += (out.argmax(1) == y).sum().item()
""",
            after="""
for epoch in range(epochs):
    total, correct = 0.0, 0
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        loss += 0.1 * penalty
        loss.backward()
        total += loss.detach() * len(x)
        correct += (out.argmax(1) == y).sum().item()
""",
        ),
        Example(
            before="""
class Runner:
    def step(self, x, y):
        loss = self.loss_fn(self.net(x), y)  # <- graph=self.net(x)
        loss.backward()
        self.history["loss"].append(loss)
""",
            after="""
class Runner:
    def step(self, x, y):
        loss = self.loss_fn(self.net(x), y)
        loss.backward()
        self.history["loss"].append(loss.detach())
""",
        ),
        Example(  # the loss of a step that has several terms is differentiated: what keeps it is the list
            before="""
for step in range(1000):
    loss = 0
    for x, y in micro_batches(step):
        loss = loss + F.mse_loss(model(x), y) / 4  # <- graph=model(x)
    loss.backward()
    losses.append(loss)
""",
            after="""
for step in range(1000):
    loss = 0
    for x, y in micro_batches(step):
        loss = loss + F.mse_loss(model(x), y) / 4
    loss.backward()
    losses.append(loss.detach())
""",
        ),
        Example(  # a dictionary of the terms, too
            before="""
for x, y in data:
    out = model(x)  # <- graph=model(x)
    losses = {}
    losses["ce"] = F.cross_entropy(out, y)
    losses["l2"] = penalty(model)
    total = sum(losses.values())
    total.backward()
    curve.append(total)
""",
            after="""
for x, y in data:
    out = model(x)
    losses = {}
    losses["ce"] = F.cross_entropy(out, y)
    losses["l2"] = penalty(model)
    total = sum(losses.values())
    total.backward()
    curve.append(total.detach())
""",
        ),
    )
    LEAVES_ALONE = (
        Example(  # several values, of which the others keep their graphs
            """
for x, y in data:
    total, ce, rec = losses(model(x), y)  # <- graph=model(x)
    total.backward()
    meters.update(total=total, ce=ce, rec=rec)
""",
            "",
        ),
        Example(
            "for x, y in data:\n    loss = criterion(model(x), y)  # <- graph=model(x)\n    total += loss.item()\n", ""
        ),
        Example("for x in data:\n    score = rate(model(x))  # <- graph=model(x)\n    total += score\n", ""),
        Example(
            "for x in data:\n    loss = 0\n    for part in x:\n        loss = loss + f_loss(model(part))  # <- graph\n",
            "",
        ),
        Example(  # differentiated after a loop over its parts
            """
for task in tasks:
    meta_loss = 0
    for x, y in task:
        inner(model).backward()
        meta_loss += criterion(model(x), y)  # <- graph=model(x)
    meta_loss.backward()
""",
            "",
        ),
        Example(  # given to a function that may differentiate it
            """
for task in tasks:
    terms = []
    for x, y in task:
        inner(model).backward()
        terms.append(criterion(model(x), y))  # <- graph=model(x)
    meta_update(model, terms)
""",
            "",
        ),
        Example(
            """
def step(heads, x, y):
    losses = []
    for head in heads:
        losses.append(criterion(head(x), y))  # <- graph=head(x)
    sum(losses).backward()
""",
            "",
        ),
        Example(  # differentiated by whoever called
            """
def loss_of(heads, x, y):
    losses = []
    for head in heads:
        losses.append(criterion(head(x), y))  # <- graph=head(x)
    total = sum(losses)
    return total
""",
            "",
        ),
        Example(
            """
reg = 0.0
for x, y in data:
    pred = model(x)  # <- graph=model(x)
    reg = reg + (pred - prev).square().mean()
    (criterion(pred, y) + reg).backward(retain_graph=True)
    prev = pred.detach()
""",
            "",
        ),
        Example(  # a number by then; what keeps the graphs is the tensor that grows
            """
for x, y in data:
    out = model(x)  # <- graph=model(x)
    loss = criterion(out, y)
    loss = loss.item()
    total_loss += loss
    preds = torch.cat([preds, out])
""",
            "",
        ),
        Example(  # a dictionary
            """
for x, y in data:
    parts = criterion(model(x), y)  # <- graph=model(x)
    parts["total"].backward()
    history.append(parts)
""",
            "",
        ),
        Example(
            """
for x, y in data:
    loss = criterion(model(x), y)  # <- graph=model(x)
    total += loss["total"]
""",
            "",
        ),
        Example(
            """
for x, y in data:
    loss = criterion(model(x), y)  # <- graph=model(x)
    for name, part in loss.items():
        print(name, part.item())
    history.append(loss)
""",
            "",
        ),
        Example(
            "for x, y in data:\n    loss_dict = criterion(model(x), y)  # <- graph=model(x)\n"
            "    history.append(loss_dict)\n",
            "",
        ),
        Example(  # a number in the rounds without it
            """
for step, (x, y) in enumerate(data):
    extra = 0.0
    if step > 100:
        extra = criterion(model(x), y)  # <- graph=model(x)
    curve.append(extra)
""",
            "",
        ),
    )


def _again_s(evidence: Evidence) -> float:
    """Seconds per undisturbed step in nodes of the graph that were evaluated before, weights' own nodes aside."""
    trace, steps = evidence.trace, evidence.steps
    operators = trace.operators
    if not len(steps) or not evidence.step_s:
        return 0.0
    nodes = names_like(trace, operators.name, lambda name: name.startswith(_NODE) and _WEIGHT not in name)
    rows = np.flatnonzero(nodes & (operators.sequence >= 0) & (assign(steps, operators.start) >= 0))
    rows = rows[np.argsort(operators.start[rows], kind="stable")]
    first = np.zeros(len(rows), np.bool_)
    keys = np.stack([operators.sequence[rows].astype(np.int64), operators.name[rows].astype(np.int64)], axis=1)
    first[np.unique(keys, axis=0, return_index=True)[1]] = True
    repeated = rows[~first]
    spent = float((operators.end[repeated] - operators.start[repeated]).sum())
    return evidence.step_s * spent / steps.total_ns


def _runs_on(site: Site) -> bool:
    """Whether a name is differentiated there with its graph kept, to which the loop around it adds in each round."""
    try:
        draft = Draft(Sources().source(site.file))
    except AdvisorError:
        return False
    call = call_at(draft, site, ("backward",))
    loop = draft.loop(call) if call is not None else None
    if call is None or loop is None or argument(call, "retain_graph") is None:
        return False
    name = call.func.value if isinstance(call.func, cst.Attribute) else None
    if not isinstance(name, cst.Name):
        return False
    one = m.Name(name.value)
    added = m.AugAssign(target=one, operator=m.AddAssign()) | m.Assign(
        targets=[m.AssignTarget(target=one)], value=m.BinaryOperation(left=one, operator=m.Add())
    )
    return bool(m.findall(loop, added))


def _place(frames: tuple[Site, ...]) -> Site:
    """The line that accumulates, as far as the files on disk tell; else the innermost frame's."""
    try:
        found = accumulation(Drafts(Sources()), frames)
    except AdvisorError:
        found = None
    if found is None:
        return frames[0]
    return replace(
        frames[0], file=found.draft.source.path, line=found.line, column=None, end_line=None, end_column=None
    )
