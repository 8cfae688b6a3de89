"""What is computed for each sample, and is the same for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gradients.function_backwards import backward_seconds
from advisor.evidence.worked import added_up
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.15
_BASIS = "what these calls take in the run, but for one row, and for what calling them takes"


class SameRows(Rule):
    """A step computes something for each sample of the batch, and it is the same for all of them.

    A covariance that depends on the model alone and is expanded to the batch before a filter goes through it, a matrix
    of a fixed graph that is normalized once for each sample, an embedding of a time that all samples have: the first
    operator after ``expand`` or ``repeat`` writes it out as many times as there are samples, and all that follows
    computes as many times the same. Without that dimension it is computed once; broadcasting gives it to all samples
    where it meets what differs (``x @ gain.mT``, ``a - b[None]``, ``expand`` at the end). Reported where results of a
    run's forwards were seen whose rows are all the same, to the last digit.

    When not: the samples are to differ in it later. On a GPU it is not reported: there calls take no time of their own.

    Source: PyTorch docs, "Broadcasting semantics"; the time that these calls took in the run.
    """

    id = "same-rows"
    title = "Compute once what is the same for all samples"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        # What is the same in every step, too, is to be computed before them: recomputed-constants says so.
        # Where a part of the model is given such rows, repeated-rows does.
        sites = [*(each.site for each in record.recomputed), *(each.site for each in record.repeated_rows)]
        told = {(each.file, each.line) for each in sites}
        lines = [each for each in record.same_rows if (each.site.file, each.site.line) not in told]
        if not lines:
            return
        forward = sum(each.seconds for each in lines)
        backward = backward_seconds(evidence, added_up(each.differentiated for each in lines))
        gain = Gain.of(evidence.what_if(Change(remove_host_s=forward + backward)), basis=_BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way, places = by_way_of(longest.site, longest.called_from), {at(each.site) for each in lines}
        others = f", and at {len(places) - 1} more" if len(places) > 1 else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min((forward + backward) / step_s, 1.0):.0%} of the step computes for each of "
            f"{longest.rows:,} rows what is the same for all of them, at {at(longest.site)}{way}{others}.",
            gain=gain,
            evidence={
                "rows": longest.rows,
                "calls_per_step": sum(each.calls for each in lines),
                "same_forward_s": forward,
                "same_backward_s": backward,
                "step_s": step_s,
            },
            site=longest.site,
            parameters={"lines": tuple(each.site for each in lines if each.seconds >= 0.1 * forward)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        lines = finding.parameters.get("lines")
        others = {at(each) for each in lines} - {at(finding.site)} if isinstance(lines, tuple) else set()
        also = f" (and at {', '.join(sorted(others))})" if others else ""
        return Advice(
            f"Compute what is computed {where(finding.site)}{also} without the dimension of the samples, for one of "
            "them: leave out the expand() or repeat() in front of it, and let broadcasting give the result to all "
            "where it meets what differs from sample to sample.",
            "where they begin to differ only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="P = P0.expand(batch, -1, -1)\nfor y in series:\n    P = F @ P @ F.mT + Q  # <-\n",
            after="",
            advice="without the dimension of the samples",
        ),
    )
    LEAVES_ALONE = (Example("for y in series:\n    x = x @ F.mT  # <-\n", ""),)
