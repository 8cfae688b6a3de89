"""A step computes rows of which most are multiplied by zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.facts import BACKWARD
from advisor.evidence.gradients.backwards import backward_over_forward
from advisor.evidence.gradients.function_backwards import backward_seconds
from advisor.evidence.worked import added_up
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_LEAST_GAIN = 1.10
_ALL = 1.0  # of the rows: a mask that is still to let some through (FixMatch's, at first)
_LEAST_PART = 0.1  # of the longest: places below are not named
# Of what the rows take that come to nothing: for picking the others, and, where rows of many columns are multiplied,
# for putting them back; and how many times as long as its forward the backward of such work takes, at least, which is
# mostly two products for one. Measured with autoencoders and towers whose losses are multiplied (2.07 and 2.0 times as
# fast) and with experts of two kinds (1.85 and 2.36).
_PICKING, _PUTTING_BACK, _BACKWARD = 0.1, 0.2, 1.6
_MOST_BACKWARD = 4.0  # times its forward: where nearly all of a step's backward is the term's, it has nearly all of it
# Of the rest of the step, as much as the term is of it: its parameters are not updated, and the caches hold what stays.
# Of two scripts whose term was 0.7 of the step 0.34 and 0.39 of the rest were left.
_WITH_IT = 0.6
_NUMBER = "what the term takes in the run, and its backward by the step's own"
_BASIS = "prior: what the rows take that are multiplied by zero, but for a tenth or a fifth, for picking the others"


class ZeroWeightedRows(Rule):
    """Most rows that a part of the model computes are multiplied by zero, and go nowhere else.

    A mixture of experts that asks every expert for every sample and weighs them by a gate that is zero for all but two;
    members of a bagged ensemble that see the whole batch, and losses that a mask takes most of away. What is multiplied
    by zero has no part in the loss, and its gradients are zeros: ``rows = weight.nonzero().squeeze(1)``, the module
    called with ``x[rows]``, and ``out.index_add(0, rows, …)`` or a mean over these rows give the same for the part of
    the work that counts. Or a term of the loss has the number 0 for its weight, in a configuration, and its decoder,
    its head, its discriminator is computed and differentiated all the same. Reported where a run has seen it, of rows
    that linear layers, convolutions, activations and losses compute each by itself, where nothing else reads them, and
    where the weights do not depend on them.

    When not: the rows are few, or the weights are rarely zero later in the training (a gate that sharpens; where all of
    them are zero, as a mask of confident labels is at first, nothing is reported); a weight of 0 that grows later is 0
    until then. What is multiplied by 0 may be infinite. A batch norm would see fewer rows, and is not looked behind. On
    a GPU it is not reported: there calls take no time of their own.

    Source: the time that these calls took in the run, by the share of their rows. Shazeer et al. 2017, "Outrageously
    Large Neural Networks", section 2: "wherever G(x)_i = 0, we need not compute E_i(x)".
    """

    id = "zero-weighted-rows"
    title = "Compute only the rows that count"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.weighted or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        if not record.computed_s:
            return
        # While they were watched other programs may have held the steps up: then all of it took too long.
        scale = min(1.0, step_s / record.computed_s)
        if (found := _by_number(evidence, record, scale)) is not None:
            yield found
        weighted = [each for each in record.weighted if each.zero < _ALL]
        if not weighted:
            return
        backward = max(_BACKWARD, backward_over_forward(evidence)) if evidence.trains else 0.0
        seconds = sum((each.seconds + backward * each.differentiated_s) * each.zero for each in weighted) * scale
        left = _PUTTING_BACK if any(each.columns > 1 for each in weighted) else _PICKING
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=seconds * (1.0 - left))), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        longest = weighted[0]
        named = [each for each in weighted if each.seconds >= _LEAST_PART * longest.seconds]
        places = ", ".join(dict.fromkeys(at(each.site) for each in named))
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{seconds / step_s:.0%} of the step computes rows that are multiplied by zero, at {places}{way}: "
            f"{longest.zero:.0%} of {longest.rows} rows there.",
            gain=gain,
            evidence={
                "zero_share": longest.zero,
                "rows": longest.rows,
                "zero_weighted_s": seconds,
                "step_s": step_s,
            },
            site=longest.site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        if finding.parameters.get("by_number"):
            return Advice(
                f"Compute {where(finding.site)} only where its weight is not 0 (if weight: loss = loss + weight * "
                "term), and what it needs of the model as well. Its parameters then have no gradient, where they had "
                "zeros: an optimizer leaves them as they are, without weight decay, too.",
                "whether the weight stays 0, and who else looks at the term, only its author can tell",
            )
        return Advice(
            f"Compute {where(finding.site)} the rows alone whose weight is not zero: rows = weight.nonzero()[:, 0], "
            "call it with x[rows], and put the results back with index_add(0, rows, …), or take the loss of them.",
            "where the weights are known, and where the results go, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="""
for i, expert in enumerate(self.experts):
    out = out + gate[:, i, None] * expert(x)  # <-
""",
            after="",
            advice="weight.nonzero()",
        ),
        Example(
            before="loss = task + weights['recon'] * error(model.decode(z), x)  # <-\n",
            after="",
            parameters={"by_number": True},
            advice="only where its weight is not 0",
        ),
    )
    LEAVES_ALONE = (Example("loss = (error(model(x), y) * keep).sum()  # <-\n", ""),)


def _by_number(evidence: Evidence, record: RunRecord, scale: float) -> Finding | None:
    """A term of the loss whose weight is the number 0."""
    terms = [each for each in record.weighted if each.by_number]
    if not terms or not evidence.trains:
        return None
    back = backward_seconds(evidence, added_up(each.differentiated for each in terms), _MOST_BACKWARD)
    back = min(back * scale, evidence.breakdown.share(BACKWARD) * (evidence.step_s or 0.0))
    seconds = sum(each.seconds for each in terms) * scale + back
    step_s = evidence.step_s or seconds
    with_it = _WITH_IT * min(1.0, seconds / step_s) * max(0.0, step_s - seconds)
    gain = Gain.prior(evidence.what_if(Change(remove_host_s=seconds + with_it)), _NUMBER)
    if gain.likely < _LEAST_GAIN:
        return None
    longest = terms[0]
    places = dict.fromkeys(at(each.site) for each in terms if each.seconds >= _LEAST_PART * longest.seconds)
    way = by_way_of(longest.site, [longest.site, *longest.called_from])
    return Finding(
        rule=ZeroWeightedRows.id,
        title="Leave out what the loss has a weight of 0 for",
        summary=f"{min(1.0, seconds / step_s):.0%} of the step computes, at {', '.join(places)}"
        f"{way}, what is multiplied by the number 0 and goes nowhere else, and its gradients, which are zeros.",
        gain=gain,
        evidence={"zero_weighted_s": seconds, "step_s": evidence.step_s},
        site=longest.site,
        parameters={"by_number": True},
        safety=Safety.BEHAVIOUR,
    )
