"""The GPU waits for the launches of many short kernels, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.kept_outputs import kept_output
from advisor.edit.locate import call_at
from advisor.edit.names import framework_used, full_name
from advisor.edit.origins.values import give
from advisor.evidence import CAPTURES, COLD, Change
from advisor.evidence.coded import names_like
from advisor.evidence.fusion import not_in_place, too_old_for_triton
from advisor.evidence.gpu.sized import sized_syncs
from advisor.evidence.gpu.varying import sizes_vary
from advisor.evidence.host import LAUNCH_PERIOD_NS
from advisor.fixes import edited
from advisor.rule import (
    WIDEST,
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
    serving_engine,
    site_list,
    sites,
    where,
)
from advisor.shared import compiled as in_place

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

_GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch")
_LEAST_LAUNCHES = 10  # per step: with fewer it is no model's step
_LEAST_IDLE = 0.3  # of the step that the GPU waits between launches
_SHORT_S = 50e-6  # eager PyTorch spends 5 to 50 µs of the host's time on an operator: shorter kernels wait for it
# A host that takes longer from one launch to the next does more than launching (Host.launching draws the same line).
_LONGEST_S = LAUNCH_PERIOD_NS / 1e9
# What is left of launches and of the host's time between them, once a graph holds them: best, likely, worst. One call
# launches all of a graph; what stays is what is not captured (NVIDIA, "Getting Started with CUDA Graphs": 20 kernels of
# 2.9 µs, 9.6 µs each when launched one by one, 3.4 µs as a graph).
_LEFT = (0.03, 0.12, 0.4)
_RARELY = 0.5  # of the steps: a backward more than the optimizers' steps, once in a while, is no accumulation
_LEAST_GAIN = 1.10  # a prior asks for more than what could just be measured
_MODE = 'mode="reduce-overhead"'
_BASIS = "prior: one launch in place of all that a graph can hold"


class LaunchBound(Rule):
    """The step is many short kernels, and the GPU is done with each before the host has launched the next.

    Launching a kernel takes the host longer than such a kernel runs: Python, the dispatcher, the driver. A CUDA graph
    records the launches once and replays them all with a single call. ``torch.compile(mode="reduce-overhead")`` makes
    and replays such graphs for the forward and backward pass; ``torch.cuda.make_graphed_callables`` does it without a
    compiler. Where the batch may grow, a larger one fills the same launches with more work.

    When not: shapes change from step to step (each shape is a graph, with memory of its own); values are read back, or
    tensors move to the CPU, inside of the model; outputs of one step are kept beyond the next (a graph writes to the
    same memory again), or gradients of several backwards are summed up; few, long kernels.

    Source: PyTorch, "Accelerating PyTorch with CUDA Graphs"; torch.compile, ``mode="reduce-overhead"``; NVIDIA,
    "Getting Started with CUDA Graphs". The gain is a prior on what the replay of the step leaves of the launches.
    """

    id = "launch-bound"
    title = "Launch the step's kernels as a graph"
    safety = Safety.NUMERIC
    after = ("debug-modes-left-on", "host-sync")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or evidence.bound != "host" or serving_engine(evidence):
            return
        if evidence.capture_share >= CAPTURES or evidence.setup_share >= COLD or evidence.others:
            return
        if names_like(evidence.trace, evidence.trace.runtime.name, _GRAPH_LAUNCH.match).any():
            return
        if any(row.kind == "communication" for row in evidence.kernels):
            return  # collectives in a graph ask for more than a setting
        count = sum(row.count for row in evidence.kernels)
        launches, idle = count / max(1, len(evidence.steps)), evidence.idle_between_launches
        mean_s = sum(row.total_s for row in evidence.kernels) / max(1, count)
        if launches < _LEAST_LAUNCHES or idle < _LEAST_IDLE or mean_s > _SHORT_S:
            return
        if idle * (evidence.trace_step_s or 0.0) > launches * _LONGEST_S:
            return
        gain = _gain(evidence)
        if gain.likely < _LEAST_GAIN:
            return
        compiled = call_sites(evidence, "torch.compile", "Module.compile", every_step=False)
        forwards = forward_sites(evidence)
        place = compiled[0] if compiled else (forwards[0] if forwards else None)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step launches {launches:.0f} kernels of {mean_s * 1e6:.0f} µs on average; for {idle:.0%} of "
            "it the GPU waits for the next launch.",
            gain=gain,
            evidence={
                "launches_per_step": launches,
                "mean_kernel_us": mean_s * 1e6,
                "idle_between_launches_share": idle,
                "step_s": evidence.step_s,
            },
            site=place.site if place is not None else None,
            parameters={**in_place.places(evidence), "compiled": sites(compiled)},
            unmet=_unmet(evidence) if compiled else (*_unmet(evidence), *_uncompiled(evidence)),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        places = site_list(finding, "compiled")
        if not places:
            return _compiled(finding, Drafts(sources))
        text = f'Pass mode="reduce-overhead" to the compilation {where(places[0])}.'
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        drafts, calls = Drafts(sources), dict[Draft, list[cst.Call]]()
        for site in site_list(finding, "forward"):
            if (forward := _forward_at(drafts, site)) is not None:
                calls.setdefault(drafts[site.file], []).append(forward)
        for site in places:
            draft = drafts[site.file]
            call = call_at(draft, site, ("compile",))
            if call is None:
                return Advice(text, "the call cannot be told from others on its line, or is a decorator")
            if framework_used(draft):
                return Advice(text, f"{framework_used(draft)} runs the model")
            if any(argument(call, name) is not None for name in ("options", "backend", "mode")):
                return Advice(text, "the call says already how to compile")
            if give(drafts, draft, call, "mode", '"reduce-overhead"') != "":
                return Advice(text, "where its arguments come from cannot be told from the source")
            calls.setdefault(draft, []).extend(_calls_of_compiled(draft, call))
        if why := _keeps(drafts, calls):
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

model = torch.compile(Net().cuda())  # fused  # <- compiled
""",
            after="""
import torch

model = torch.compile(Net().cuda(), mode="reduce-overhead")  # fused
""",
        ),
        Example(
            before="""
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 4)).cuda()
for x in batches:
    loss = net(x).sum()  # <- forward=net(x)
    loss.backward()
""",
            after="""
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 4)).cuda()
net.compile(mode="reduce-overhead")
for x in batches:
    loss = net(x).sum()
    loss.backward()
""",
        ),
        Example(
            before="""
net.compile(  # <- compiled
    fullgraph=True,
)
""",
            after="""
net.compile(
    fullgraph=True,
    mode="reduce-overhead",
)
""",
        ),
    )
    LEAVES_ALONE = (
        Example('import torch\nf = torch.compile(g, mode="max-autotune")  # <- compiled\n', ""),
        Example('import torch\nf = torch.compile(g, backend="onnxrt")  # <- compiled\n', ""),
        Example("import torch\nf = torch.compile(g, **how)  # <- compiled\n", ""),
        *(
            Example(f"import torch\nmodel = torch.compile(Net().cuda())  # <- compiled\n{code}", "")
            for code in (
                "feats = []\nfor x in xs:\n    feats.append(model(x.cuda()))\nfeats = torch.cat(feats)\n",
                "h = None\nfor x in xs:\n    out, h = model(x, h)\n",
            )
        ),
    )


def _compiled(finding: Finding, drafts: Drafts) -> Edit | Advice:
    """Have a model that is not compiled yet be compiled so that it is launched as graphs."""
    text = f"Compile the model called {where(finding.site)} with {_MODE}, or record it as a CUDA graph."
    if finding.unmet:
        return Advice(text, " ".join(finding.unmet))
    if not all(drafts.sources.has(site.file) for site in site_list(finding, "forward")):
        return Advice(text, "graphs are made when compiling, nothing is compiled yet, and the source is not there")
    if framework := in_place.framework(finding, drafts):
        return Advice(text, f"{framework} runs the model")
    calls = dict[Draft, list[cst.Call]]()
    for site in site_list(finding, "forward"):
        if (forward := _forward_at(drafts, site)) is not None:
            calls.setdefault(drafts[site.file], []).append(forward)
    if why := _keeps(drafts, calls) or in_place.put(finding, drafts, _MODE):
        return Advice(text, why)
    return edited(drafts, text, f"Compile the model called {where(finding.site)} with {_MODE}.")


def _forward_at(drafts: Drafts, site: Site) -> cst.Call | None:
    return call_at(drafts[site.file], site) if drafts.sources.editable(site.file) else None


def _keeps(drafts: Drafts, calls: Mapping[Draft, list[cst.Call]]) -> str:
    """Which line keeps an output of these calls beyond the next one, as a clause that says what to do; or nothing."""
    for draft, forwards in calls.items():
        if (place := kept_output(drafts, draft, forwards)) is not None:
            return (
                f"{at(place)} keeps an output beyond the model's next call, and "
                "graphs write to the same memory again: keep its .clone(), and call "
                "torch.compiler.cudagraph_mark_step_begin() in front of each step"
            )
    return ""


def _uncompiled(evidence: Evidence) -> tuple[str, ...]:
    """What stands against compiling a model that is not compiled yet."""
    known = _unmet(evidence)
    found = (*in_place.unmet(evidence), *not_in_place(evidence))
    return tuple(each for each in found if each not in known and not each.startswith("Input shapes change"))


def _calls_of_compiled(draft: Draft, call: cst.Call) -> list[cst.Call]:
    """The calls of what ``net = torch.compile(…)``, or ``net.compile()``, compiles, by its name."""
    above = draft.parent(call)
    names = [draft.code(each.target) for each in above.targets] if isinstance(above, cst.Assign) else []
    if full_name(draft, call.func) != "torch.compile" and isinstance(call.func, cst.Attribute):
        names = [draft.code(call.func.value)]
    return [each for each in draft.nodes(cst.Call) if draft.code(each.func) in names]


def _gain(evidence: Evidence) -> Gain:
    """The steps with the least, the likely and the most left of the launches; the optimizer's own stay."""
    optimizing = evidence.host.optimizer.within(evidence.steps.start, evidence.steps.end).sum()
    inside = 1.0 - float(optimizing) / max(1, evidence.steps.total_ns)
    changes = (Change(launch_scale=1.0 - (1.0 - left) * inside) for left in _LEFT)
    best, usual, worst = (evidence.what_if(change).speedup for change in changes)
    low, likely, high = worst[0], max(usual[1], worst[1]), best[2]
    around = WIDEST**0.5  # the range is at most so wide
    return Gain(max(low, likely / around), likely, min(max(high, likely), likely * around), _BASIS)


def _unmet(evidence: Evidence) -> tuple[str, ...]:
    record, found = evidence.record, [*too_old_for_triton(evidence)]
    if record is None:
        return (*found, "The trace does not say whether shapes change from step to step, which graphs do not allow.")
    if record.shapes_vary or sizes_vary(evidence, lambda _: True, forward=True):
        found.append("Input shapes change between steps: pad them to a few sizes first.")
    if any(row.cause == "item" for row in evidence.syncs):
        found.append("A value is read back from the GPU in the step, which a graph cannot hold: see host-sync.")
    sized = sized_syncs(evidence.steps, evidence.device, evidence.nesting)
    if sized.count >= 1:
        found.append(
            f"The values of tensors decide the size of others {sized.count:.0f} time(s) a step "
            f"({', '.join(sized.calls)}): a graph's sizes are fixed, and so must these be first."
        )
    backwards, steps = (sum(c.calls_per_step for c in call_sites(evidence, k)) for k in ("backward", "Optimizer.step"))
    if backwards > max(1.0, steps) + _RARELY:
        found.append("Gradients of several backwards are summed up, and a graph writes each one's to the same memory.")
    return tuple(found)
