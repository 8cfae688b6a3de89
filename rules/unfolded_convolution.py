"""A convolution is written out: patches are laid side by side and multiplied by a matrix of filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft
from advisor.edit.finding import only_line
from advisor.edit.names import full_name, last_part
from advisor.evidence.algebra.unfolded import WrittenOut, written_out
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence


class UnfoldedConvolution(Rule):
    """A convolution is written out: ``F.unfold`` copies every patch of a picture, and one matrix multiplies them.

    The patches of a 3x3 kernel are nine times as large as the picture; they are written, read by a product, kept for
    the backward, and their gradients are added up again. ``F.conv2d(x, weight.view(filters, channels, k, k), bias)``
    computes the same numbers from the picture itself, in one kernel made for it. Reported where the run shows the
    patches and, right behind them, their product with one matrix for all pictures.

    When not: the filters differ from place to place or from picture to picture (a local layer, an attention over
    neighbours), or something else is done to the patches.

    Source: PyTorch docs, ``torch.nn.Unfold``: "Convolution is equivalent with Unfold + Matrix Multiplication + Fold".
    The gain is what these operators took in the run, less an estimate of the convolution by its operations.
    """

    id = "unfolded-convolution"
    title = "Let a convolution do what patches and a product do"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares, comes = written_out(evidence)
        counts = {each: times for each, times in counts.items() if times >= 0.5}
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares, comes)))
        if not gain.worth_it:
            return
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.channels * each.filters)
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step copies patches of {'x'.join(map(str, most.kernel))} at {at(site)} and "
            f"multiplies them by filters, {sum(counts.values()):.0f} times: convolutions written out.",
            gain=gain,
            evidence={
                "unfolded_share": share,
                "convolution_s": comes,
                "convolutions_per_step": sum(counts.values()),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"filters": most.filters, "channels": most.channels, "kernel": most.kernel},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        filters, channels, kernel = (finding.parameters.get(each) for each in ("filters", "channels", "kernel"))
        size = f"{kernel[0]}, {kernel[1]}" if isinstance(kernel, tuple) else "k, k"
        return Advice(
            f"Call F.conv2d(x, weight.view({filters or 'filters'}, {channels or 'channels'}, {size}), bias) at "
            f"{at(finding.site)}, with the stride, padding and dilation that unfold has; its result has the picture's "
            "two dimensions already. Or make the layer an nn.Conv2d.",
            "how the patches, the filters and the bias go together only their author can tell",
        )

    EXAMPLES = (
        Example(
            before="cols = F.unfold(x, 3, padding=1)  # <-\ny = weight @ cols\n",
            after="",
            parameters={"filters": 32, "channels": 3, "kernel": (3, 3)},
            advice="F.conv2d(x, weight.view(32, 3, 3, 3), bias)",
        ),
    )
    LEAVES_ALONE = (Example("cols = F.unfold(x, 3)  # <-\ny = (weight * cols).sum(1)\n", ""),)


def _lines(draft: Draft, found: WrittenOut) -> list[int]:
    """The lines that lay patches side by side, in the function that begins there."""
    calls = [each for each in draft.nodes(cst.Call) if draft.function_line(each) == found.function[1]]
    named = ("torch.nn.functional.unfold", "torch.nn.Unfold")
    return [
        draft.line(each) for each in calls if full_name(draft, each.func) in named or last_part(each.func) == "unfold"
    ]
