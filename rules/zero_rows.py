"""Products of rows that are zeros: places of a buffer that nothing was put into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gradients.backwards import backward_over_forward
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.15
_PACKING = 0.1  # of what the zeros take: for a buffer that fits what there is
_BASIS = "prior: what the rows of zeros take, but for a tenth"


class ZeroRows(Rule):
    """Layers multiply buffers most of whose rows are zeros.

    Experts that each get a place for every token, of which a gate fills a few; sets, graphs or sentences in buffers
    that would hold the largest of all. A row of zeros takes a product as long as any other one. A buffer of as many
    rows as the fullest expert, or set, of this batch has gives the same; so do rows that are packed, one after another,
    with an index that says whose they are. Reported where a run has seen such rows in what products are given.

    When not: a compiled model, or CUDA graphs, that want one shape. On a GPU it is not reported: there calls take no
    time of their own.

    Source: the time that these calls took in the run, by the share of their rows. Gale et al. 2022, "MegaBlocks",
    section 3: experts' buffers are padded to one capacity, and the padding is computed.
    """

    id = "zero-rows"
    title = "Leave rows out that are zeros"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.zero_rows or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = record.zero_rows
        backward = backward_over_forward(evidence) if evidence.trains else 0.0
        seconds = sum(each.seconds + backward * each.differentiated_s for each in lines)
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=seconds * (1.0 - _PACKING))), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        others = f", and at {len(lines) - 1} more" if len(lines) > 1 else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(seconds / step_s, 1.0):.0%} of the step multiplies rows of zeros, at {at(longest.site)}{way}"
            f"{others}: {longest.zeros:,.0f} of {longest.rows:,.0f} rows there.",
            gain=gain,
            evidence={
                "rows": longest.rows,
                "zero_rows": longest.zeros,
                "zero_forward_s": sum(each.seconds for each in lines),
                "seconds_saved": seconds,
                "step_s": step_s,
            },
            site=longest.site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Give what is multiplied {where(finding.site)} as many rows as this batch fills: a capacity of "
            "int(counts.max()), or the rows of all one after another, with an index of whose they are.",
            "how the buffer is filled, and read again, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="hidden = torch.bmm(buffer, self.w1)  # <-\n",
            after="",
            advice="int(counts.max())",
        ),
    )
    LEAVES_ALONE = (Example("hidden = x[rows] @ self.w1  # <-\n", ""),)
