"""A whole order is computed of which only the beginning is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.sorted_parts import SortedPart, sorted_parts, take_first
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.sorts import Sorted, partly_read
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class SortForTopk(Rule):
    """Tensors are sorted, and only the first few of each row are read.

    ``torch.sort(x, descending=True)[0][:, :k]`` puts all n numbers of a row in order, n·log(n) comparisons, and copies
    n numbers and n places; ``torch.topk(x, k)`` finds the k largest in order, in about n. So it is with ``argsort`` for
    the nearest neighbours, the hardest negatives, the best of a retrieval. Reported where the run shows sorts and
    slices of at most a quarter of them, and the source shows that nothing else of them is read.

    When not: more of the order is needed elsewhere, or ties have to come in the order of a stable sort. Among equal
    numbers topk may choose others. On a GPU it is not reported: which of the two is faster there goes by the sizes, and
    was not measured.

    Source: PyTorch docs, ``torch.topk``, ``torch.sort``. What topk leaves is measured
    (`advisor/evidence/algebra/sorts.py`).
    """

    id = "sort-for-topk"
    title = "Find the first ones with topk, not by sorting all"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares = partly_read(evidence)
        counts = {each: times for each, times in counts.items() if times >= 0.5 and _in_source(each)}
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        most = max(counts, key=lambda each: each.size * counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} sorts rows of {most.size:,} numbers, of which {most.count:,} are read: "
            f"{spent_s(evidence, shares) / (evidence.trace_step_s or 1.0):.0%} of the step that topk would not take.",
            gain=gain,
            evidence={
                "saved_share": spent_s(evidence, shares) / (evidence.trace_step_s or 1.0),
                "sorted": most.size,
                "read": most.count,
                "sorts_per_step": sum(counts.values()),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "sorts": (site,),
                "function": most.function[1],
                "dimensions": most.dimensions,
                "alone": len({each.function for each in counts}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "sorts") or (None,)
        text = f"Have torch.topk(x, k, dim, largest) find what is read of the sort {where(site)}; its values and "
        text += "indices come in the same order."
        function, dimensions = (finding.parameters.get(each) for each in ("function", "dimensions"))
        if site is None or not finding.parameters.get("alone", True):
            return Advice(text, "more than one function sorts")
        if not isinstance(function, int) or not isinstance(dimensions, int):
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = sorted_parts(draft, function, dimensions)
        known = [each for each in there if isinstance(each, SortedPart)]
        if not known or len(known) < len(there):
            return Advice(text, "whether more of the order is read cannot be told from the source")
        for each in known:
            take_first(draft, each)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def hardest(queries, bank, k):
    scores = queries @ bank.T
    return torch.sort(scores, dim=1, descending=True)[0][:, :k]  # <- sorts
""",
            after="""
import torch

def hardest(queries, bank, k):
    scores = queries @ bank.T
    return torch.topk(scores, min(k, scores.shape[-1]), dim=-1, largest=True)[0]
""",
            parameters={"function": 3, "dimensions": 2},
        ),
        Example(
            before="""
import torch

def neighbours(x):
    apart, alike = torch.cdist(x, x), x @ x.T
    near = apart.argsort(dim=-1)[:, 1:9]  # all but itself  # <- sorts
    values, order = alike.sort(descending=True)
    return near, values[..., :9].mean(), order[..., :9]
""",
            after="""
import torch

def neighbours(x):
    apart, alike = torch.cdist(x, x), x @ x.T
    near = apart.topk(min(9, apart.shape[-1]), dim=-1, largest=False).indices[:, 1:]  # all but itself
    values, order = alike.topk(min(9, alike.shape[-1]), dim=-1, largest=True)
    return near, values.mean(), order
""",
            parameters={"function": 3, "dimensions": 2},
        ),
        Example(
            before="""
import torch as th

best = th.sort(losses, descending=True)  # <- sorts
loss = best.values[:16].mean()
""",
            after="""
import torch as th

best = th.topk(losses, min(16, losses.shape[-1]), dim=-1, largest=True)
loss = best.values.mean()
""",
            parameters={"function": 0, "dimensions": 1},
        ),
        Example(
            before="""
import torch

def middle(x):
    order = torch.sort(x, dim=1)[0]  # <- sorts
    return order[:, :4].mean() + order[:, -4:].mean()
""",
            after="",
            parameters={"function": 3, "dimensions": 2},
            advice="torch.topk(x, k, dim, largest)",
        ),
    )
    LEAVES_ALONE = tuple(
        Example(f"import torch\ny = {code}  # <- sorts\n", "", {"function": 0, "dimensions": 2})
        for code in (
            "torch.sort(x, dim=0)[0][:, :4]",  # sorted along another dimension
            "torch.sort(x, stable=True)[0][:, :4]",
            "torch.sort(x, dim=1, descending=down)[0][:, :4]",
            "torch.sort(x, dim=1)[0][:, :-4]",
            "torch.sort(x, dim=1)[0][:, ::4]",
            "torch.sort(x, dim=1)[0][:, 4:]",
            "torch.sort(x, dim=1)[0][0, :4]",
            "f(torch.sort(x, dim=1)[0])[:, :4]",
            "torch.sort(f(x), dim=1)[0][:, :4]",  # how many numbers a row has would be computed twice
            "numpy.argsort(x)[:, :4]",
        )
    )


def _in_source(found: Sorted) -> bool:
    """Whether the function has calls that sort, and of none of them more than the beginning is read."""
    return bool(found_in(found.function, lambda draft: _lines(draft, found)))


def _lines(draft: Draft, found: Sorted) -> list[int]:
    """The lines of the calls that sort; none where of one of them more is read than the beginning."""
    there = sorted_parts(draft, found.function[1], found.dimensions)
    known = [draft.line(each.call) for each in there if isinstance(each, SortedPart)]
    return known if len(known) == len(there) else []
