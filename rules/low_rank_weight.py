"""A frozen weight and a product of two narrow matrices are added up for each forward of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts, Sources
from advisor.edit.algebra.low_rank import merged_weights, split
from advisor.edit.finding import only_line
from advisor.evidence.algebra.low_rank import LowRank, LowRanks, low_rank_weights
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

# What comes, for each row in training: the narrow products forward, and twice backward, at half the rate of the
# layer's own, which is as large; their outputs scaled and added, and the gradients of the inputs: read and written
# eight times, at the 10 GB/s that a core gets from memory, as everywhere here.
_SLOWER, _PASSES, _BYTES, _BANDWIDTH = 2.0, 8, 4, 10e9
_LEFT_ON_GPU = 0.15  # of what goes: a prior, no GPU has been asked


class LowRankWeight(Rule):
    """A layer's weight is made anew in each forward: a frozen one plus a product of two narrow matrices (LoRA).

    ``F.linear(x, W + s * (B @ A))`` writes a matrix as large as the weight three times over, and autograd computes the
    gradient of all of it, which only serves to be multiplied by ``A`` and ``B``. ``F.linear(x, W) + s * F.linear(
    F.linear(x, A), B)`` is the same and never has anything as large: the frozen weight needs no gradient, and the
    narrow products cost next to nothing. Reported where the run's operators follow each other like that and no
    parameter of the weight's shape is trained.

    When not: many more rows than the weight has columns, where the layer's outputs are larger than the weight; a
    dropout, a norm or anything else that treats the sum as one weight. Sums are rounded differently.

    Source: Hu et al., LoRA (arXiv:2106.09685), section 4.1: the two are multiplied by the input each, and summed. The
    gain is what these operators took in the run, less an estimate of the two narrow products.
    """

    id = "low-rank-weight"
    title = "Apply the low-rank part beside the weight"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = low_rank_weights(evidence)
        if found is None:
            return
        shares = of_tensors(found.shares)
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        if evidence.device_is_gpu:
            gone = {name: each * (1.0 - _LEFT_ON_GPU) for name, each in shares.items()}
            change = without(evidence, gone)
        else:
            change = without(evidence, shares, _comes_s(found))
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        most = max(found.counts, key=lambda each: each.shape[0] * each.shape[1] * found.counts[each])
        site, number = _made_at(most), round(sum(found.counts.values()))
        shape = "x".join(map(str, most.shape))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step adds products of rank {most.rank} to the frozen weights of {number} "
            f"layers, {shape} and the like, at {at(site)}, and computes gradients of the whole of them.",
            gain=gain,
            evidence={
                "low_rank_share": share,
                "layers": number,
                "rank": most.rank,
                "weight_shape": shape,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "weights": (site,),
                "function": most.used_in[1],
                "here": len({(each.made_in, each.used_in) for each in found.counts}) == 1
                and most.made_in == most.used_in,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "weights") or (None,)
        text = f"Multiply by the frozen weight and by the two narrow matrices {where(site)} each, and add the outputs: "
        text += "F.linear(x, W, bias) + s * F.linear(F.linear(x, A), B)."
        if site is None or not finding.parameters.get("here", True):
            return Advice(text, "the weight is made in another place than the layer that is given it")
        drafts = Drafts(sources)
        draft, function = drafts[site.file], finding.parameters.get("function")
        there = list(merged_weights(draft, function if isinstance(function, int) else 0))
        if len(there) != 1 or not split(draft, there[0]):
            return Advice(text, "how the weight is put together there cannot be told from the source with certainty")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch.nn.functional as F
from torch import nn

class Adapted(nn.Module):
    def forward(self, x):
        weight = self.base.weight + self.scaling * (self.B @ self.A)  # <- weights
        return F.linear(x, weight, self.base.bias)
""",
            after="""
import torch.nn.functional as F
from torch import nn

class Adapted(nn.Module):
    def forward(self, x):
        return F.linear(x, self.base.weight, self.base.bias) + F.linear(F.linear(x, self.A), self.B) * self.scaling
""",
            parameters={"function": 5},
        ),
        Example(
            before="""
import torch

def apply(x, w, a, b, scale):
    delta = torch.mm(b, a.T) * scale
    return torch.nn.functional.linear(x, delta + w)  # <- weights
""",
            after="""
import torch

def apply(x, w, a, b, scale):
    return torch.nn.functional.linear(x, w) + \
torch.nn.functional.linear(torch.nn.functional.linear(x, a.T), b) * scale
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
from torch.nn import functional as F

y = F.linear(x, layer.weight + 0.5 * b @ a)  # <- weights
""",
            after="""
from torch.nn import functional as F

y = F.linear(x, layer.weight) + F.linear(F.linear(x, a), 0.5 * b)
""",
        ),
        Example(
            before="""
import torch
from torch import nn

class Delta(nn.Module):
    def forward(self, weight):
        return weight + self.b @ self.a  # <- weights
""",
            after="",
            parameters={"here": False},
            advice="F.linear(F.linear(x, A), B)",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch.nn.functional as F\ny = F.linear(x, w + norm(b @ a))  # <- weights\n", ""),
        Example("import torch.nn.functional as F\ny = F.linear(f(x), w + b @ a)  # <- weights\n", ""),
        Example("import torch.nn.functional as F\ny = F.linear(x, w - b @ a)  # <- weights\n", ""),
        Example("import torch.nn.functional as F\nw = v + b @ a  # <- weights\ny = F.linear(x, w)\nz = w.sum()\n", ""),
    )


def _comes_s(found: LowRanks) -> float:
    """Seconds a step of the narrow products, and of what is done with their outputs."""
    flops, narrow, numbers = 0.0, 0.0, 0.0
    for each, times in found.counts.items():
        outputs, inputs = each.shape
        flops += times * each.rows * outputs * inputs
        narrow += times * each.rows * each.rank * (outputs + inputs) * 3
        numbers += times * each.rows * (outputs + inputs) / 2
    return _SLOWER * narrow / flops * found.product_s + numbers * _PASSES * _BYTES / _BANDWIDTH


def _made_at(found: LowRank) -> Site:
    """The layer that is given the weight, where its function has one; else where the function that makes it begins."""
    path, line = found.made_in
    if found.made_in != found.used_in:
        return Site(path, max(1, line))
    return only_line(found.made_in, lambda draft: [draft.line(each.call) for each in merged_weights(draft, line)])
