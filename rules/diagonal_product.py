"""A whole product of matrices is computed for its diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.diagonals import Taken, diagonals, take
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.diagonals import Diagonal, diagonal_products
from advisor.evidence.by_function import Function
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class DiagonalProduct(Rule):
    """``torch.diag(A @ B)`` or ``torch.trace(A @ B)`` computes n² numbers of a product and takes n of them.

    A Mahalanobis distance written ``torch.diag(d @ precision @ d.T)``, similarities of pairs ``(a @ b.T).diagonal()``,
    a log-likelihood as the trace of labels times logarithms: each row is multiplied by all columns, and one is wanted.
    ``(A * B.mT).sum(-1)`` multiplies each row by its own column, ``(A * B.mT).sum()`` is the trace; n times less work,
    in the backward as well. Reported where the run shows square products in a function that takes one diagonal, and the
    source says that this is of them, and that nothing else uses them.

    When not: the rest of the product is used, too (similarities with all others of a batch).

    Source: trace(A B) is the sum of all A_ij B_ji, by the definition of both. What is left is measured
    (`advisor/evidence/algebra/diagonals.py`).
    """

    id = "diagonal-product"
    title = "Multiply rows, not all pairs of them, for a diagonal"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares = diagonal_products(evidence, _products)
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.rows * each.rows * each.inner * counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} takes the diagonal of a product of {most.rows} by {most.rows} numbers: "
            f"{saved:.0%} of the step computes the others.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "products_per_step": sum(counts.values()),
                "rows": most.rows,
                "inner": most.inner,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"function": most.function[1], "alone": len({each.function for each in counts}) == 1},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        site, function = finding.site, finding.parameters.get("function")
        text = f"Multiply each row by its own column {where(site)}: (A * B.mT).sum(-1) for torch.diag(A @ B), and "
        text += "(A * B.mT).sum() for torch.trace(A @ B)."
        if site is None or not isinstance(function, int):
            return Advice(text, "its place is unknown")
        if not finding.parameters.get("alone", True):
            return Advice(text, "more than one function does so")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        found = _only(draft, function)
        if found is None:
            return Advice(text, "the function takes several diagonals, or of more than products")
        take(draft, found)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def distance(d, precision):
    return torch.diag(d @ precision @ d.T).sqrt()  # <-
""",
            after="""
import torch

def distance(d, precision):
    return (d @ precision * d).sum(-1).sqrt()
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def agreement(a, b):
    scores = torch.matmul(a, b.t())
    return scores.diagonal().mean()  # <-
""",
            after="""
import torch

def agreement(a, b):
    return (a * b).sum(-1).mean()
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def likelihood(y, p):
    return -torch.trace(torch.matmul(y, torch.log(p).float().t()) + torch.matmul(1 - y, torch.log(1 - p).t()))  # <-
""",
            after="""
import torch

def likelihood(y, p):
    return -((y * torch.log(p).float()).sum() + ((1 - y) * torch.log(1 - p)).sum())
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def loss(a, b):
    scores = a @ b.T
    return torch.logsumexp(scores, 1).mean() - torch.diag(scores).mean()  # <-
""",
            after="",
            parameters={"function": 3},
            advice="its own column",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ny = torch.diag(v)  # <-\n", "", {"function": 0}),
        Example("import torch\ny = torch.diag(a @ b, 1)  # <-\n", "", {"function": 0}),
        Example("import torch\ny = torch.trace(f(a @ b))  # <-\n", "", {"function": 0}),
    )


def _only(draft: Draft, line: int) -> Taken | None:
    """What the function that begins at `line` takes its one diagonal of, if that is products alone."""
    there = diagonals(draft, line)
    return there[0] if len(there) == 1 and isinstance(there[0], Taken) else None


def _products(function: Function) -> int:
    """Of how many products the function takes its one diagonal; 0 where that is not known."""
    return sum(found_in(function, lambda draft: [each.products] if (each := _only(draft, function[1])) else []))


def _lines(draft: Draft, product: Diagonal) -> list[int]:
    found = _only(draft, product.function[1])
    return [draft.line(found.call)] if found is not None else []
