"""Products of a step copy the same operand each time, as its heads do not lie in memory one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.locate import call_at
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, by_way_of, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.05
_NAMES = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "rearrange")
_ADVICE = "Copy once what the products at {places} are given: add .contiguous() where its dimensions are put in order"


class CopiedOperands(Rule):
    """Matrix products are given the same tensor many times in a step, and copy it each time before they multiply.

    ``torch.matmul`` folds all dimensions before the last two into one, which takes no copy only where they lie in
    memory one after another. Heads that ``permute`` or ``transpose`` put in front of the positions do not. Keys and
    values that are projected once, and that every step of a decoder, or every round of a solver, multiplies with, are
    copied whole by each of them. ``.contiguous()`` where they are made copies them once; a transposed view of the last
    two dimensions needs none. Reported where a run has seen products copy what they had copied before.

    When not: the memory of one more copy is not there. On a GPU it is not reported: there calls take no time of their
    own.

    Source: PyTorch docs, ``torch.Tensor.view`` (which dimensions can be folded without a copy), ``torch.matmul``. The
    time is that of one copy, measured in the run.
    """

    id = "copied-operands"
    title = "Copy once what every product copies"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = record.copied_operands
        seconds = sum(each.seconds for each in lines)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=seconds)))
        if not lines or gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        others = f" (and at {len(lines) - 1} more lines)" if len(lines) > 1 else ""
        shape = "x".join(map(str, longest.shape))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Products at {at(longest.site)}{by_way_of(longest.site, longest.called_from)}{others} copy what "
            f"they are given {sum(each.calls for each in lines):.0f} times in a step, though an earlier one had copied "
            f"the same: {shape} numbers whose heads do not lie one after another, {seconds * 1e3:.1f} ms.",
            gain=gain,
            evidence={
                "copies_per_step": sum(each.calls for each in lines),
                "shape": shape,
                "copying_s": seconds,
                "step_s": step_s,
            },
            site=longest.site,
            parameters={
                "products": tuple(each.site for each in lines),
                "laid_out": tuple({at(each.laid_out_at): each.laid_out_at for each in lines}.values()),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        products, laid_out = site_list(finding, "products"), site_list(finding, "laid_out")
        places = ", ".join(dict.fromkeys(map(at, products or (finding.site,))))
        text = _ADVICE.format(places=places)
        drafts = Drafts(sources)
        for site in laid_out:
            draft = drafts[site.file] if sources.has(site.file) else None
            call = call_at(draft, site, _NAMES) if draft is not None else None
            if draft is None or call is None:
                break
            draft.change(call, _copied)
        else:
            if laid_out:
                return edited(drafts, f"{text}, at {', '.join(map(at, laid_out))}.")
        return Advice(f"{text}.", "which line puts its dimensions in that order cannot be told from the run")

    EXAMPLES = (
        Example(
            before="""
def heads(x):
    return x.view(x.size(0), x.size(1), 8, -1).permute(2, 0, 1, 3)  # <- laid_out

keys, values = heads(project_keys(memory)), heads(project_values(memory))
for query in queries:
    scores = torch.matmul(heads(query), keys.transpose(-2, -1))  # <- products
    glimpse = torch.matmul(scores.softmax(-1), values)
""",
            after="""
def heads(x):
    return x.view(x.size(0), x.size(1), 8, -1).permute(2, 0, 1, 3).contiguous()

keys, values = heads(project_keys(memory)), heads(project_values(memory))
for query in queries:
    scores = torch.matmul(heads(query), keys.transpose(-2, -1))
    glimpse = torch.matmul(scores.softmax(-1), values)
""",
        ),
        Example(
            before="""
k = (
    self.key(memory)
    .view(batch, length, heads, -1)
    .transpose(1, 2)  # <- laid_out
)
scores = [q @ k.mT for q in queries]  # <- products
""",
            after="""
k = (
    self.key(memory)
    .view(batch, length, heads, -1)
    .transpose(1, 2).contiguous()
)
scores = [q @ k.mT for q in queries]
""",
        ),
        Example(
            before="scores = [q @ keys.mT for q in queries]  # <- products\n",
            after="",
            advice=".contiguous()",
        ),
    )
    LEAVES_ALONE = (
        Example("k = project(memory)  # <- laid_out\nscores = [q @ k.mT for q in queries]  # <- products\n", ""),
    )


def _copied(node: cst.CSTNode) -> cst.Call:
    """The call with ``.contiguous()`` behind it, within the parentheses that it stands in."""
    call = cst.ensure_type(node, cst.Call)
    within = call.with_changes(lpar=(), rpar=())
    return cst.Call(cst.Attribute(within, cst.Name("contiguous")), lpar=call.lpar, rpar=call.rpar)
