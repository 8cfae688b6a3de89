"""A module is given rows that it has computed already, and computes each copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gradients.backwards import backward_over_forward
from advisor.harness.layout import RepeatedRow
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = {"block": 1.10, "tile": 1.10}
_LEAST_GAIN_UNORDERED = 1.15  # which rows are equal has to be found out, then
# Of what the copies take: for repeating, or picking, what the others give.
_PICKING = 0.1
_BASIS = "prior: what the copies take, but for a tenth, for repeating what the others give"


class RepeatedRows(Rule):
    """A part of the model is given the same rows several times in a step, and computes each of them again.

    A question that is repeated beside each of its candidates before it is encoded; a context that is expanded over the
    samples that are drawn for it; triplets whose anchors, positives and negatives are rows of one batch, each encoded
    in three calls. What treats each row of a batch alone – layers, convolutions, attention within a row – gives the
    same for equal ones: encode the rows first, and repeat, or index, what that gives. Reported where a run has seen
    that rows are equal, and that what they become is, too.

    When not: a batch norm sees other statistics with fewer rows, and is not looked behind. Where dropout is on, and a
    part of the model is given rows that were repeated in order, three times and more, it is reported as well: each copy
    then gets the same noise, which is another training. Rows that are repeated for their noise (Monte Carlo dropout,
    views for contrastive learning) are meant. Rows that are equal in the data itself are not reported. On a GPU it is
    not, either: there calls take no time of their own.

    Source: the time that these calls took in the run, by the share of their rows. Hermans, Beyer and Leibe 2017, "In
    Defense of the Triplet Loss for Person Re-Identification", section 2: in a batch all triplets are made of
    embeddings that were computed once.
    """

    id = "repeated-rows"
    title = "Compute equal rows once"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.repeated_rows or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        # Dropout in an inference is what its rows are repeated for.
        lines = [each for each in record.repeated_rows if evidence.trains or not each.dropout]
        if not lines:
            return
        backward = backward_over_forward(evidence) if evidence.trains else 0.0
        seconds = sum(each.seconds + backward * each.differentiated_s for each in lines)
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=seconds * (1.0 - _PICKING))), _BASIS)
        longest = lines[0]
        if gain.likely < _LEAST_GAIN.get(longest.order, _LEAST_GAIN_UNORDERED):
            return
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(seconds / step_s, 1.0):.0%} of the step computes rows again: {longest.module} at "
            f"{at(longest.site)}{way} is given {longest.rows:,.0f} rows, {_which(longest)}.",
            gain=gain,
            evidence={
                "rows": longest.rows,
                "different_rows": longest.distinct,
                "repeated_forward_s": sum(each.seconds for each in lines),
                "seconds_saved": seconds,
                "step_s": step_s,
            },
            site=longest.site,
            safety=Safety.BEHAVIOUR if longest.dropout else None,
            parameters={
                "order": "calls" if any(each.order == "calls" for each in lines) else longest.order,
                "dropout": longest.dropout,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        order, there = finding.parameters.get("order"), where(finding.site)
        if order in ("block", "tile"):
            repeat = "repeat_interleave(times, 0)" if order == "block" else "repeat(times, 1)"
            text = f"Call the module {there} with the rows before they are repeated, and repeat what it gives: "
            text += f"module(x).{repeat} for module(x.{repeat})."
        elif order == "calls":
            text = f"Call the module {there} once, with all rows of the batch, and index what it gives: z = module(x), "
            text += "then z[i] for each module(x[i])."
        else:
            text = f"Call the module {there} with the rows that differ, and index what it gives: by the ids that they "
            text += "are made of, ids, back = ids.unique(return_inverse=True), then module(ids)[back]."
        if finding.parameters.get("dropout"):
            text += " Dropout is on: all copies of a row then get the same noise."
        return Advice(text, "how the result gets to where it is used only its author can decide")

    EXAMPLES = (
        Example(
            before="questions = self.encoder(ids.repeat_interleave(8, 0))  # <-\n",
            after="",
            parameters={"order": "block"},
            advice="module(x).repeat_interleave(times, 0)",
        ),
        Example(
            before="a, p, n = net(x[i]), net(x[j]), net(x[k])  # <-\n",
            after="",
            parameters={"order": "calls"},
            advice="z[i] for each module(x[i])",
        ),
        Example(
            before="users = self.tower(self.embedding(ids))  # <-\n",
            after="",
            parameters={"order": "", "dropout": True},
            advice="return_inverse=True",
        ),
    )
    LEAVES_ALONE = (Example("a, p, n = z[i], z[j], z[k]  # <-\n", ""),)


def _which(line: RepeatedRow) -> str:
    """How its rows repeat themselves, in words."""
    if line.order == "block":
        return f"each of {line.distinct:,.0f} several times in a row"
    if line.order == "tile":
        return f"the same {line.distinct:,.0f} again and again"
    if line.order == "calls":
        new = f"of which only {line.distinct:,.0f} are new" if line.distinct else "none of which is new"
        return f"{new}: the others were given to it earlier in the step"
    return f"of which only {line.distinct:,.0f} differ"
