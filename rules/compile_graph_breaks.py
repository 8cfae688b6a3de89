"""A compiled model that the compiler had to cut into pieces, or to leave alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.fusion import basis, fused, graphs_expected, graphs_per_step, runs_model
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import GraphBreak

# Seconds of the host's for each graph more, its backward and what runs between the two in Python counted. Measured with
# torch 2.15, one thread, four blocks of 64 features: 1.37 ms a step with ten graphs, 0.93 ms with two.
_BREAK_S = 0.11e-3
_CUTS = f"prior: {_BREAK_S * 1e6:.0f} us for each graph more, measured on a CPU"
_LEAST_GAIN = 1.10  # a prior asks for more than what could just be measured
_NAMED = 5
# What the script asked for by name.
_WANTED = re.compile(r"torch\.compiler\.disable|torch\._dynamo\.disable|_dynamo\.graph_break|disallowed", re.IGNORECASE)

# What Dynamo says (torch 2.6 to 2.15) and what to write instead. The first that fits.
_CURES = (
    (
        re.compile(r"Tensor\.item|_local_scalar_dense|Tensor\.__(float|int|bool)__", re.IGNORECASE),
        "reads a value out of a tensor (.item(), float()): keep it a tensor (torch.maximum for max(), a 0-dim tensor "
        "or a buffer for what is remembered) and read it outside of the compiled code, where it is printed",
    ),
    (
        re.compile(r"generic_jump|data.dependent (branch|control|jump|assert)", re.IGNORECASE),
        "branches on a tensor's value: choose with torch.where(condition, a, b), or with torch.cond",
    ),
    (
        re.compile(r"tolist|\.numpy|numpy", re.IGNORECASE),
        "leaves PyTorch (.tolist(), .numpy()): stay with tensors, or move it out of the compiled function",
    ),
    (
        re.compile(r"dynamic.shape operator|nonzero|masked_select|unique|data.dependent", re.IGNORECASE),
        "makes a tensor whose size depends on values (x[mask], nonzero): use torch.where or multiply by the mask",
    ),
    (
        re.compile(r"print|logg|warn", re.IGNORECASE),
        "prints or logs: do it outside of the compiled function",
    ),
    (
        re.compile(r"builtin|skipped|forbidden|not supported|inline", re.IGNORECASE),
        "calls what Dynamo cannot look into (print, logging, time, a C extension): move the call out of the compiled "
        "function, or guard it with `if not torch.compiler.is_compiling():`",
    ),
)
_OTHER = "does what Dynamo cannot trace: say it with torch operators, or move it out of the compiled function"


class CompileGraphBreaks(Rule):
    """The compiled model breaks at lines that the compiler cannot trace, so parts of it run uncompiled.

    At such a line Dynamo ends its graph, lets Python run the line, and begins another graph: nothing is fused across
    it, and each graph has guards to check and a wrapper around it, once more in the backward pass. Inside of a loop it
    gives the whole function up, which then runs operator by operator as if it had not been compiled. Both are counted:
    the breaks in Dynamo's own books, the graphs that really run in the trace of a step.

    When not: the break is outside of what takes time, or it came in the first call only (then it is not reported);
    the value is needed by Python in every step, to stop early, say.

    Source: PyTorch, "torch.compile Programming Model", "Graph Breaks" and "Working with Graph Breaks" (a break in a
    loop skips the frame); ``torch.compile(fullgraph=True)`` raises at the first of them.
    """

    id = "compile-graph-breaks"
    title = "Keep the compiled model in one graph"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        breaks = [each for each in record.graph_breaks if not _WANTED.search(each.reason)] if record is not None else []
        if not breaks:
            return
        running, expected = graphs_per_step(evidence), graphs_expected(evidence)
        skipped = [each for each in breaks if each.skipped and runs_model(evidence)]
        cuts_s = max(0.0, (running - expected) / (2 if evidence.trains else 1)) * _BREAK_S
        if skipped and (running < expected or all(each.skipped for each in breaks)):
            # Functions that it calls may still be compiled, each by itself, for each of their calls.
            whole = fused(evidence)
            whole = replace(whole, remove_host_s=whole.remove_host_s + cuts_s)
            named, gain = skipped, Gain.prior(evidence.what_if(whole), basis(evidence))
            what = f"Dynamo gave the function up at {_lines(skipped)}: it runs operator by operator in every step" + (
                f", and {running:.0f} graphs of what it calls." if running > expected else "."
            )
        else:
            # A value that is read there, of a tensor on the GPU, waits for it as well.
            lines = {(each.site.file, each.site.line) for each in breaks if each.site is not None}
            read = [row.index for row in evidence.syncs if any((s.site.file, s.site.line) in lines for s in row.sites)]
            change = Change(remove_host_s=cuts_s, remove_syncs=read)
            named, gain = breaks, Gain.prior(evidence.what_if(change), _CUTS)
            what = f"The model is cut into pieces at {_lines(breaks)}: {running:.0f} compiled graphs run in every step."
        if gain.likely < _LEAST_GAIN:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=what,
            gain=gain,
            evidence={
                "graph_breaks": len(breaks),
                "graphs_per_step": running,
                "dynamo_reason": named[0].reason,
                "step_s": evidence.step_s,
            },
            site=named[0].site,
            parameters={
                "places": tuple(each.site for each in named[:_NAMED] if each.site is not None),
                "reasons": tuple(each.reason for each in named[:_NAMED] if each.site is not None),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        reasons = finding.parameters.get("reasons", ())
        places = site_list(finding, "places") or ((finding.site,) if finding.site is not None else ())
        said = [
            f"{at(site)} {cure(str(reason))}."
            for site, reason in zip(places, reasons if isinstance(reasons, tuple) else (), strict=False)
        ]
        text = " ".join(dict.fromkeys(said)) or f"Look at what {at(finding.site)} does in the compiled code."
        return Advice(
            text + " torch.compile(..., fullgraph=True) then says at once when a break is left.",
            "what the line is for, only its author knows",
        )

    EXAMPLES = (
        Example(
            before="""
class Net(nn.Module):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            self.largest = max(self.largest, x.max().item())  # <- places
        return x
""",
            after="",
            parameters={"reasons": ("Unsupported Tensor.item() call with capture_scalar_outputs=False",)},
            advice="torch.maximum",
        ),
        Example(
            before="def forward(self, x):\n    if bool(x.sum() > 0):  # <- places\n        x = -x\n    return x\n",
            after="",
            parameters={"reasons": ("generic_jump TensorVariable()",)},
            advice="torch.where",
        ),
        Example(
            before='def forward(self, x):\n    print("here")  # <- places\n    return x\n',
            after="",
            parameters={"reasons": ("Failed to trace builtin operator",)},
            advice="is_compiling",
        ),
    )
    LEAVES_ALONE = (Example("y = net(x).max().item()  # <-\n", ""),)


def cure(reason: str) -> str:
    """What a line does that breaks the graph for this reason of Dynamo's, and what to do instead."""
    return next(
        (said for pattern, said in _CURES if pattern.search(reason)), f"{_OTHER} ({reason})" if reason else _OTHER
    )


def _lines(breaks: list[GraphBreak]) -> str:
    places = list(dict.fromkeys(at(each.site) for each in breaks))
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return ", ".join(places[:_NAMED]) + more
