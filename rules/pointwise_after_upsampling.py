"""A convolution of 1x1 comes behind an upsampling, and does for many pixels what it could do for few."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.enlarging import convolve_first, enlargings
from advisor.edit.finding import only_line
from advisor.evidence.algebra.enlarged import Enlarged, enlarged_first
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class PointwiseAfterUpsampling(Rule):
    """A picture is made larger, and a convolution of 1x1 then mixes the channels of each of its pixels.

    Interpolation takes means of neighbouring pixels, the same for all channels, with weights that add up to one; a
    convolution of 1x1 treats each pixel alike. So the two may change places, bias included: ``F.interpolate(conv(x),
    scale_factor=4)`` is ``conv(F.interpolate(x, scale_factor=4))`` but for rounding, with a sixteenth of the pixels to
    convolve, forward and backward. Where the convolution leaves fewer channels (the classes of a segmentation), there
    is less to enlarge, too. Reported where the run shows the one right behind the other.

    When not: the convolution makes many more channels than it is given; anything but it stands in between (a norm, an
    activation).

    Source: both are linear and work on different dimensions; Long et al., Fully Convolutional Networks
    (arXiv:1411.4038), score at the coarse resolution and upsample the scores. The gain is what the two took in the run,
    by the pixels and the channels that are left.
    """

    id = "pointwise-after-upsampling"
    title = "Convolve 1x1 before the picture is made larger"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = enlarged_first(evidence)
        counts = {each: times for each, times in found.counts.items() if times >= 0.5}
        if not counts:
            return
        shares = of_tensors(found.shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.channels * prod(each.pixels) * each.larger * counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        here = [each for each in counts if each.function == most.function]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} makes pictures of {'x'.join(map(str, most.pixels))} {most.larger:.0f} times as large, "
            f"and convolves all their pixels 1x1, from {most.channels} channels to {most.filters}: before the "
            f"enlarging that is {saved:.0%} of the step less.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "times_larger": most.larger,
                "channels": most.channels,
                "filters": most.filters,
                "convolutions_per_step": sum(counts.values()),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "enlarged": (site,),
                "function": most.function[1],
                "kinds": len(here),
                "alone": len({each.function for each in counts}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "enlarged") or (None,)
        text = f"Let the convolution of 1x1 come before the upsampling {where(site)}: F.interpolate(conv(x), ...) for "
        text += "conv(F.interpolate(x, ...))."
        function, kinds = finding.parameters.get("function"), finding.parameters.get("kinds", 1)
        if site is None or not isinstance(function, int) or not isinstance(kinds, int):
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = enlargings(draft, function)
        if not there:
            return Advice(text, "the two are not called in one place, by names of which the file says what they are")
        if len(there) > kinds:
            return Advice(text, "which of several is meant there cannot be told")
        for each in there:
            why = convolve_first(draft, each)
            if why:
                return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch.nn.functional as F
from torch import nn

class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.scores = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, x, size):
        return self.scores(F.interpolate(x, size=size, mode="bilinear", align_corners=False))  # <- enlarged
""",
            after="""
import torch.nn.functional as F
from torch import nn

class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.scores = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, x, size):
        return F.interpolate(self.scores(x), size=size, mode="bilinear", align_corners=False)
""",
            parameters={"function": 9},
        ),
        Example(
            before="""
from torch import nn

class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.mix = nn.Conv2d(a, b, 1, bias=False)
        self.refine = nn.Conv2d(b, b, 3, padding=1)

    def forward(self, x, skip):
        x = self.up(x)  # coarse  # <- enlarged
        x = self.mix(x)
        return self.refine(x + skip)
""",
            after="""
from torch import nn

class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.mix = nn.Conv2d(a, b, 1, bias=False)
        self.refine = nn.Conv2d(b, b, 3, padding=1)

    def forward(self, x, skip):
        x = self.mix(x)  # coarse
        x = self.up(x)
        return self.refine(x + skip)
""",
            parameters={"function": 10},
        ),
        Example(
            before="""
import torch
from torch import nn

project = nn.Conv2d(64, 8, (1, 1), padding=0)

def masks(features, like):
    fine = torch.nn.functional.interpolate(features[-1], size=like.shape[-2:])  # <- enlarged
    logits = project(fine)
    return logits.sigmoid()
""",
            after="""
import torch
from torch import nn

project = nn.Conv2d(64, 8, (1, 1), padding=0)

def masks(features, like):
    fine = project(features[-1])
    logits = torch.nn.functional.interpolate(fine, size=like.shape[-2:])
    return logits.sigmoid()
""",
            parameters={"function": 6},
        ),
        Example(
            before="""
from torch import nn

head = nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(64, 2, 1))

def forward(x):
    return head(x)  # <- enlarged
""",
            after="",
            parameters={"function": 5},
            advice="before the upsampling",
        ),
    )
    LEAVES_ALONE = tuple(
        Example(
            "import torch.nn.functional as F\nfrom torch import nn\n\nconv = nn.Conv2d(8, 4, 1)\n"
            f"wide = nn.Conv2d(8, 4, 3)\npadded = nn.Conv2d(8, 4, 1, padding=1)\n\ndef f(x):\n{code}\n",
            "",
            {"function": 8},
        )
        for code in (
            "    return wide(F.interpolate(x, scale_factor=2))  # <- enlarged",
            "    return padded(F.interpolate(x, scale_factor=2))  # <- enlarged",
            "    return conv(F.interpolate(x, scale_factor=2).relu())  # <- enlarged",
            "    x = F.interpolate(x, size=[2 * n for n in x.shape[-2:]])  # <- enlarged\n    return conv(x)",
            "    y = F.interpolate(x, scale_factor=2)  # <- enlarged\n    z = conv(y)\n    return z, y",
            "    y = F.interpolate(x, scale_factor=2)  # <- enlarged\n    y = conv(y) + y\n    return y",
            "    y = F.interpolate(x, scale_factor=2)  # <- enlarged\n    if y.shape[2] > 9:\n        y = conv(y)\n"
            "    return y",
        )
    )


def _lines(draft: Draft, found: Enlarged) -> list[int]:
    return [draft.line(each.upsampling) for each in enlargings(draft, found.function[1])]
