"""The gradients of one thing by several inputs are asked for one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from advisor.edit import Drafts, Sources
from advisor.edit.finding import found_in
from advisor.edit.gradients.joined_gradients import ask_once
from advisor.edit.gradients.joined_gradients import separate_gradients as written
from advisor.evidence.gradients.separate_gradients import asked_again, separate_gradients
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit
    from advisor.evidence import Evidence


class _Place(NamedTuple):
    """Gradients of one thing in the source: the first one's line, where its function begins (0: none), how many."""

    line: int
    function: int
    number: int


class SeparateGradients(Rule):
    """The gradients of one thing by several inputs are asked for one after another: each goes back through all of it.

    Networks for differential equations need ``u_x``, ``u_y`` and ``u_t``; with a call of ``torch.autograd.grad`` for
    each, the backward goes three times through the whole network, up to where x, y and t part. ``grad(u, (x, y, t))``
    goes through it once and gives the same three. With ``create_graph=True`` what comes later goes back through one
    backward, too, instead of three. Reported where a trace shows the nodes of one graph computed by several such calls
    that begin at the same one, and the source shows calls that differ in their inputs.

    The same holds of calls that give what an earlier one has given: a helper that takes one column of a gradient, asked
    for each column. Told by what the calls of a few steps gave.

    When not: the graph is freed, or weights change, between them; a gradient is only asked for sometimes.

    Source: PyTorch docs, ``torch.autograd.grad``, whose inputs are a sequence of tensors. The gain is what the run
    spent on nodes that an earlier call of the same step had computed.
    """

    id = "separate-gradients"
    title = "Ask for the gradients by all inputs in one call"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = separate_gradients(evidence)
        site, surplus = _written(found.callers, found.asking) if found is not None else (None, 0.0)
        if found is None or site is None:
            # By the same inputs each time: of the same thing weighted in other ways, or the same once more.
            yield from self._again(evidence)
            return
        known = min(1.0, surplus / max(found.calls - found.groups, 1.0))
        shares = {name: share * known for name, share in of_tensors(found.shares).items()}
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step asks {found.calls:.0f} times for the gradients of "
            f"{'one thing' if round(found.groups) == 1 else f'{found.groups:.0f} things'} by different inputs "
            f"({at(site)}), and goes back through the same operators each time: {share:.0%} of it is done again.",
            gain=gain,
            evidence={
                "again_share": share,
                "calls_per_step": found.calls,
                "needed_per_step": found.groups,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"surplus": round(found.calls - found.groups)},
        )

    def _again(self, evidence: Evidence) -> Iterator[Finding]:
        found, record = asked_again(evidence), evidence.record
        if found is None or record is None or record.asked_again is None:
            return
        told = record.asked_again
        shares = of_tensors(found.shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        yield Finding(
            rule=self.id,
            title="Keep the gradients that a step asks for again",
            summary=f"{found.calls - found.groups:.0f} of {len(told.before)} times a step asks for gradients that it "
            f"was given before ({at(told.site)}{by_way_of(told.site, told.called_from)}), and goes back through the "
            f"same operators: {share:.0%} of it is done again.",
            gain=gain,
            evidence={
                "again_share": share,
                "calls_per_step": len(told.before),
                "asked_again_per_step": found.calls - found.groups,
                "step_s": evidence.step_s,
            },
            site=told.site,
            parameters={"again": True},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("again"):
            return Advice(
                f"Keep what torch.autograd.grad gives {where(finding.site)} until the step is over, by what it was "
                "asked of: a gradient by one tensor of all coordinates has u_x, u_y and u_t as its columns. A dict of "
                "the object that a step makes will do, or a local name.",
                "how the result gets to where it is asked for again only its author can decide",
            )
        site, surplus = finding.site, finding.parameters.get("surplus")
        text = (
            f"Ask for all gradients of one thing at once ({at(site)}): u_x, u_t = torch.autograd.grad(u, (x, t), "
            "torch.ones_like(u), create_graph=True). Or give the network one tensor of all coordinates, of whose "
            "gradient u_x and u_t are the columns."
        )
        if site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = written(draft)
        if not there:
            return Advice(text, "the calls are in different blocks, or not alike, or a function asks for more")
        if isinstance(surplus, int) and sum(len(each) - 1 for each in there) > surplus:
            return Advice(text, "the source has more of them than the run has called")
        for each in there:
            ask_once(draft, each)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def residual(net, x, t):
    u = net(torch.cat([x, t], 1))
    u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]  # <-
    u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
    return u_t + u * u_x
""",
            after="""
import torch

def residual(net, x, t):
    u = net(torch.cat([x, t], 1))
    u_x, u_t = torch.autograd.grad(u, (x, t), grad_outputs=torch.ones_like(u), create_graph=True)
    return u_t + u * u_x
""",
        ),
        Example(
            before="""
from torch import autograd, ones_like

def slope(y, x):
    return autograd.grad(y, x, grad_outputs=ones_like(y), create_graph=True)[0]

def flow(psi, x, y):
    u = slope(psi, y)  # <-
    v = -slope(psi, x)
    return u, v
""",
            after="""
from torch import autograd, ones_like

def slope(y, x):
    return autograd.grad(y, x, grad_outputs=ones_like(y), create_graph=True)[0]

def flow(psi, x, y):
    psi_y, psi_x = autograd.grad(psi, (y, x), grad_outputs=ones_like(psi), create_graph=True)
    u = psi_y
    v = -psi_x
    return u, v
""",
        ),
        Example(
            before="def d(self, i, j):\n    return grad(self.u[:, i], self.x)[:, j]  # <-\n",
            after="",
            parameters={"again": True},
            advice="until the step is over",
        ),
    )
    LEAVES_ALONE = (
        Example(
            "import torch\na = torch.autograd.grad(u, x)[0]  # <-\nx = x + a\nb = torch.autograd.grad(u, x)[0]\n",
            "",
        ),
        Example("import torch\na = torch.autograd.grad(u, x)[0]  # <-\nb = torch.autograd.grad(v, x)[0]\n", ""),
        Example(
            "import torch\na = torch.autograd.grad(u, x)[0]  # <-\nopt.step()\nb = torch.autograd.grad(u, t)[0]\n",
            "",
        ),
    )


def _written(
    callers: tuple[tuple[str, int], ...], asking: Mapping[tuple[str, int], float]
) -> tuple[Site | None, float]:
    """The first line that asks for several, in the file of the innermost function; how many calls less there would be.

    In a step: what a function has once may run for each of several things. The line is None where no such file's source
    shows gradients of one thing by different inputs.
    """
    for path, line in callers:
        there = found_in((path, line), _places)
        if there:
            surplus = 0.0
            for function in {each.function for each in there}:
                numbers = [each.number for each in there if each.function == function]
                times = asking.get((path, function), 0.0) / sum(numbers)
                surplus += times * sum(number - 1 for number in numbers)
            return Site(path, min(each.line for each in there)), surplus
    return None, 0.0


def _places(draft: Draft) -> Iterator[_Place]:
    for each in written(draft):
        first = each.statements[0]
        yield _Place(draft.line(first), draft.function_line(first), len(each))
