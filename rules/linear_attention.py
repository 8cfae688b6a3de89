"""Attention without a softmax computes all its scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft
from advisor.edit.finding import only_line
from advisor.edit.names import last_part
from advisor.evidence.algebra.linear_attention import linear_attention
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_PRODUCTS = ("matmul", "bmm", "einsum")


class LinearAttention(Rule):
    """Attention whose scores are divided by their sums, and by nothing else, makes a score for each query and key.

    Without an exponential of the scores the product with the values may come first: ``(q @ k.mT) @ v`` is
    ``q @ (k.mT @ v)``, which takes as many operations as there are queries and keys, not as there are pairs of them,
    and never has a matrix that large; the sums are ``q @ k.sum(-2)``. That is what kernels in place of the softmax are
    taken for (``elu(x) + 1``, random features). Reported where the run shows the scores, their sums, the division and
    the product one after another, with shapes of which the other order takes less.

    When not: each query has keys of its own (a causal mask: then running sums, ``cumsum`` over the keys), or the scores
    themselves are wanted. There are few keys, and many numbers in each of them.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
    equations 4 to 6. The gain is what these products took in the run, by the operations that are left, with those of
    their backward.
    """

    id = "linear-attention"
    title = "Multiply keys and values before the queries"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        counts, shares = linear_attention(evidence)
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: (counts[each] * each.queries * each.keys, each.function))
        site = only_line(most.function, lambda draft: _with_values(draft, most.function[1]))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The attention at {at(site)} makes {most.queries}x{most.keys} scores, and divides them by their "
            f"sums alone; keys times values are {most.width}x{most.values}: {saved:.0%} of the step is not needed.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "calls_per_step": sum(counts.values()),
                "queries": most.queries,
                "keys": most.keys,
                "width": most.width,
                "step_s": evidence.step_s,
            },
            site=site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Multiply keys and values first {where(finding.site)}: out = q @ (k.mT @ v), divided by "
            "q @ k.sum(-2).unsqueeze(-1), in place of the scores and their sums.",
            "whether the scores are read elsewhere, and what is added to their sums, its author can tell",
        )

    EXAMPLES = (
        Example(
            before="""
def attend(q, k, v):  # <-
    scores = q @ k.mT
    return scores / scores.sum(-1, keepdim=True) @ v
""",
            after="",
            advice="q @ (k.mT @ v)",
        ),
    )
    LEAVES_ALONE = (Example("def attend(q, k, v):  # <-\n    return (q @ k.mT).softmax(-1) @ v\n", ""),)


def _with_values(draft: Draft, function: int) -> list[int]:
    """The line of the second of the two products that a function makes; none where it makes others."""
    products = [
        *(each for each in draft.nodes(cst.BinaryOperation) if isinstance(each.operator, cst.MatrixMultiply)),
        *(each for each in draft.nodes(cst.Call) if last_part(each.func) in _PRODUCTS),
    ]
    lines = sorted(draft.line(each) for each in products if draft.function_line(each) == function)
    return lines[1:] if len(lines) == 2 else []
