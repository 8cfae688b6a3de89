"""A loop takes a tensor's parts, or writes them, one by one, and the backward makes a whole tensor for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.python_loops.parts import take_apart
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.python_loops.groups import group_loop
from advisor.evidence.python_loops.parts import parts_one_by_one
from advisor.evidence.python_loops.rounds import loops_at
from advisor.evidence.python_loops.taken_loops import at_once_s, taken_loop
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

# Of small tensors the nodes are mostly calls, and what comes instead has some of its own, which is not counted.
_LEAST_GAIN = 1.10


class PartsOneByOne(Rule):
    """A loop takes a tensor's parts by their numbers, ``x[:, t]``, or writes them, and each costs as much as the whole.

    The gradient of ``x[:, t]`` is a tensor as large as ``x``, of zeros but for one part, and it is added to those of
    the other parts: a loop over ``T`` of them does ``T`` times the work of one pass over ``x``. ``x.unbind(1)`` in
    front of the loop gives all parts at once, and their gradients are joined once. Likewise ``y[:, t] = h``: the
    backward copies all of y's gradient for each; parts that are kept in a list, and joined by ``torch.stack`` behind
    the loop, have theirs by themselves. Recurrences and scans in Python are written like that, and so are decoders
    that collect their outputs. Reported where a trace shows these nodes of the backward, and a run has seen lines in a
    loop that record them.

    When not: few parts of a long tensor are read (an index tensor gives these at once: ``x[:, steps]``); nothing is
    differentiated; the tensor changes while the loop runs; no round needs another, and one operator does them all
    (python-loop-over-samples).

    Source: PyTorch docs, ``torch.unbind`` and ``derivatives.yaml``: the backward of ``select`` is ``select_backward``,
    zeros of the whole size with one part filled; that of ``unbind`` is one ``stack`` of all (FunctionsManual.cpp). The
    gain is what the run spent on such nodes of one function, but for one whole tensor each; on a GPU their kernels.
    """

    id = "parts-one-by-one"
    title = "Take a tensor apart before the loop, not part by part in it"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = parts_one_by_one(evidence, text_of)
        gain = Gain.of(evidence.what_if(found.change)) if found is not None else None
        if found is None or gain is None or gain.likely < _LEAST_GAIN:
            return
        taken, written = (_where(found.sites, each) for each in (False, True))
        if _all_in_loop_over_samples(evidence, sites(found.sites)):
            return  # whose rounds one operator does
        fitting = tuple(each for each in written if each.details.get("fits"))
        first = (taken or written)[0].site
        does = " and ".join(
            text
            for text in (
                f"takes {found.taken:.0f} parts of tensors one by one ({at(first)})" if taken else "",
                f"writes {found.written:.0f} {'of them' if taken else 'parts of tensors'} one by one "
                f"({at(written[0].site)})"
                if written
                else "",
            )
            if text
        )
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step {does}, and the backward makes a tensor as large as the whole for each: "
            f"{found.share:.0%} of the step.",
            gain=gain,
            evidence={
                "parts_share": found.share,
                "taken_per_step": found.taken,
                "written_per_step": found.written,
                "step_s": evidence.step_s,
            },
            site=first,
            parameters={
                "taken": sites(taken),
                "written": sites(fitting),
                "indices": tuple((each.details.get("dim"), each.details.get("keys")) for each in (*taken, *fitting)),
                "writes": bool(written),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        site = finding.site
        text = (
            f"Take the tensor apart in front of the loop ({at(site)}): parts = x.unbind(1), and parts[t] for x[:, t]; "
            "x.split(1, 1)[t] for x[:, t : t + 1]."
        )
        if finding.parameters.get("writes"):
            text += (
                " What a loop writes into y[:, t] collect in a list, and join behind it: y = torch.stack(results, 1)."
            )
        if site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        taken, written = site_list(finding, "taken"), site_list(finding, "written")
        if "taken" not in finding.parameters:
            taken, written = (site,), (site,)
        indices = finding.parameters.get("indices", ())
        if why := take_apart(drafts[site.file], taken, written, indices if isinstance(indices, tuple) else ()):
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def scan(decay, x):
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = decay * h + x[:, t]  # <-
        out.append(h)
    return torch.stack(out, 1)
""",
            after="""
import torch

def scan(decay, x):
    h, out = torch.zeros_like(x[:, 0]), []
    x_parts = x.unbind(1)
    for t in range(x.shape[1]):
        h = decay * h + x_parts[t]
        out.append(h)
    return torch.stack(out, 1)
""",
        ),
        Example(
            before="""
import torch

def decode(cell, head, tokens, h):
    outputs = torch.zeros(tokens.shape[0], tokens.shape[1], 100)
    for t in range(1, tokens.shape[1]):
        h = cell(tokens[:, t - 1], h)
        outputs[:, t] = head(h)  # <-
    return outputs
""",
            after="""
import torch

def decode(cell, head, tokens, h):
    outputs = torch.zeros(tokens.shape[0], tokens.shape[1], 100)
    outputs_parts = []
    for t in range(1, tokens.shape[1]):
        h = cell(tokens[:, t - 1], h)
        outputs_parts.append(head(h))
    if outputs_parts:
        outputs[:, 1 : 1 + len(outputs_parts)] = torch.stack(outputs_parts, 1)
    return outputs
""",
            parameters={"writes": True},
        ),
        Example(  # made in another branch, too
            before="""
import torch

def run(self, x, h):
    if self.short:
        out = torch.zeros(1, 8)
    else:
        out = torch.zeros(len(x), 8).to(x.device)
        for t in range(0, len(x)):
            h = self.cell(x[t], h)
            out[t] = h  # <-
    return out
""",
            after="""
import torch

def run(self, x, h):
    if self.short:
        out = torch.zeros(1, 8)
    else:
        out = torch.zeros(len(x), 8).to(x.device)
        out_parts = []
        for t in range(0, len(x)):
            h = self.cell(x[t], h)
            out_parts.append(h)
        if out_parts:
            out[0 : 0 + len(out_parts)] = torch.stack(out_parts, 0)
    return out
""",
            parameters={"writes": True},
        ),
        Example(
            before="""
def states(self, x):
    return [self.cell(x[t, :, :8]) for t in range(len(x))]  # <-
""",
            after="""
def states(self, x):
    x_parts = x.unbind(0)
    return [self.cell(x_parts[t][:, :8]) for t in range(len(x))]
""",
        ),
    )
    LEAVES_ALONE = (
        Example("for t in range(n):\n    h = x[:, t]  # <-\n    x = f(h)\n", ""),
        Example("for t in range(n):\n    h = x[:, t]  # <-\n    h += 1\n", ""),
        Example("for t in range(n):\n    y[:, t] = f(y[:, t - 1])  # <-\n", ""),
        Example("y = zeros(n, 3)\nfor t in range(n):\n    if t:\n        y[t] = f(t)  # <-\n", ""),
        Example(
            "y = zeros(n, 3)\nif short:\n    y = zeros(1, 3)\nfor t in range(n):\n    y[t] = f(t)  # <-\n",
            "",
            {"writes": True},
        ),
        Example(  # the second round's is another one
            "y = zeros(n, 3)\nfor k in range(2):\n    for t in range(n):\n        y[t] = f(z[k, t - 1])  # <-\n"
            "    z[k] = y\n    y = zeros_like(z[k + 1])\n",
            "",
            {"writes": True},
        ),
        Example("for t in range(n):\n    if x is not None:\n        h = h + x[:, t]  # <-\n", ""),
        Example("for layer in layers:\n    h = layer(x[:, t])  # <-\n", ""),
    )


def _all_in_loop_over_samples(evidence: Evidence, places: tuple[Site, ...]) -> bool:
    """Whether all of these are in the loop that python-loop-over-samples tells of."""
    known = taken_loop(evidence, text_of)
    if known is None or group_loop(text_of(known[1].file), known[1].line) is None:
        return False
    loop, site = known
    if not Gain.of(evidence.what_if(Change(remove_host_s=at_once_s(evidence, loop)))).worth_it:
        return False
    last = max((each.end_lineno or each.lineno for each in loops_at(text_of(site.file), site.line)), default=0)
    return all(each.file == site.file and site.line <= each.line <= last for each in places)


def _where(found: tuple[CallSite, ...], written: bool) -> tuple[CallSite, ...]:
    """Those that write, or take, the most frequent one first."""
    own = [each for each in found if bool(each.details.get("written")) == written]
    return tuple(sorted(own, key=lambda each: -each.calls))
