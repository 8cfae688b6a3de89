"""A loop in Python reads the numbers of a tensor on the CPU, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.bindings import on_line
from advisor.evidence.python_loops.over_samples import loops_over_samples
from advisor.evidence.python_loops.read_values import ReadValues, read_values
from advisor.evidence.python_loops.rounds import loops_at
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.10
_BASIS = "prior: what a loop takes to read a tensor's numbers and a list's (measured), more or less by the processor"


class ValuesOneByOne(Rule):
    """A loop asks a tensor for one number after another: ``x[i, j].item()``, ``int(x[i])``, ``if x[i] > y[i]``.

    Each index makes a tensor, each comparison another, and torch takes as long for one number as for a thousand: about
    half a microsecond for each dimension, where a list takes hundredths of one. Decoders, metrics and matchings in
    Python are written like that. ``x.tolist()`` in front of the loop makes lists of all numbers at once, which are read
    alike, ``rows[i][j]``, and hold the same numbers. Reported where the trace shows so many of them that their time, by
    what one takes, matters, and nearly all that the run has seen are read in loops, on the CPU.

    When not: the tensor changes while the loop runs; few of many numbers are read (an index tensor gives these at once:
    ``x[rows, columns].tolist()``); whole tensors can say it (``(pred == target).sum()``), which is faster still. Of a
    tensor on a GPU each number is waited for: host-sync tells of that.

    Source: PyTorch docs, ``torch.Tensor.tolist``, ``torch.Tensor.item``. What they take was measured.
    """

    id = "values-one-by-one"
    title = "Read a tensor's numbers at once, not one by one"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        found = read_values(evidence, text_of) if evidence.step_s else None
        if found is None or _in_loop_over_samples(evidence, found):
            return
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=found.seconds - found.left_s)), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        places = list(dict.fromkeys(at(each.site) for each in found.sites))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step reads {found.reads:,.0f} numbers of tensors one by one in loops of Python, by "
            f"{found.operators:,.0f} operators, at {', '.join(places[:3])}.",
            gain=gain,
            evidence={
                "reads_per_step": found.reads,
                "operators_per_step": found.operators,
                "reading_s": found.seconds,
                "step_s": evidence.step_s,
            },
            site=found.sites[0].site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Make lists of the tensors that are read at {at(finding.site)} in front of the loop, rows = x.tolist(), "
            "and read these, rows[i][j]: they hold the same numbers. What all of them say together whole tensors say "
            "at once, (pred == target).sum() or x[rows, columns], which is faster still.",
            "whether a tensor changes while the loop runs, and what it computes, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for b in range(len(best)):\n    for t in range(n[b]):\n        token = best[b, t].item()  # <-\n",
            after="",
            advice="rows = x.tolist()",
        ),
    )
    LEAVES_ALONE = (Example("total = sum(losses).item()  # <-\n", ""),)


def _in_loop_over_samples(evidence: Evidence, found: ReadValues) -> bool:
    """Whether they are read in a loop whose rounds one operator does, of which python-loop-over-samples tells."""
    return any(
        one.site.file == place.file and on_line(loop, one.site.line)
        for _, place in loops_over_samples(evidence, text_of)
        for loop in loops_at(text_of(place.file), place.line)
        for one in found.sites
    )
