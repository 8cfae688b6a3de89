"""A matrix is inverted only to be multiplied by something narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.inverses import Inverted, inverses, solve
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.inverses import Inverse, multiplied_inverses
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_HOLDS = "the inverse is used more than once, or not in a product alone"


class InverseProduct(Rule):
    """``torch.inverse(A) @ b`` computes all columns of an inverse, of which the product needs as many as ``b`` has.

    ``torch.linalg.solve(A, b)`` decomposes ``A`` as the inverse does, and goes through two triangles for each column of
    ``b``: a third of the operations, nothing of n² in the backward but one outer product, and smaller errors. Of a
    covariance or a kernel ``L = torch.linalg.cholesky(A)`` is half of that again: ``torch.cholesky_solve(b, L)``, and
    ``2 * L.diagonal().log().sum()`` is its ``logdet``. Reported where the run shows inverses with narrow products
    behind them, and the source has them.

    When not: the inverse itself is a result; or the same one is multiplied again and again (then
    ``torch.linalg.lu_factor`` once, and ``torch.linalg.lu_solve``).

    Source: PyTorch docs, ``torch.linalg.inv``: "Consider using torch.linalg.solve() if possible for multiplying a
    matrix on the left by the inverse". What it leaves is measured (`advisor/evidence/algebra/inverses.py`).
    """

    id = "inverse-product"
    title = "Solve for what the inverse is multiplied by"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares = multiplied_inverses(evidence)
        counts = {each: times for each, times in counts.items() if times >= 0.5 and _in_source(each)}
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.size * counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} inverts a matrix of {most.size} rows and multiplies it by {most.columns} "
            f"column{'s' * (most.columns > 1)}: {saved:.0%} of the step that solving takes less.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "inverses_per_step": sum(counts.values()),
                "rows": most.size,
                "columns": most.columns,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "inverses": (site,),
                "function": most.function[1],
                "alone": len({each.function for each in counts}) == 1,
                "vectors": any(each.vectors for each in counts),
                "many": any(each.many for each in counts),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "inverses") or (None,)
        text = f"Solve {where(site)} instead of inverting: torch.linalg.solve(A, b) for torch.inverse(A) @ b; of a "
        text += "covariance torch.cholesky_solve(b, torch.linalg.cholesky(A))."
        function = finding.parameters.get("function")
        if site is None or not isinstance(function, int):
            return Advice(text, "its place is unknown")
        if not finding.parameters.get("alone", True):
            return Advice(text, "more than one function inverts")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = inverses(draft, function)
        known = [each for each in there if isinstance(each, Inverted)]
        if not known or len(known) < len(there):
            return Advice(text, _HOLDS)
        if finding.parameters.get("vectors") and (
            finding.parameters.get("many") or not all(each.left for each in known)
        ):
            return Advice(text, "of a vector solve() takes another view than a product does")
        for each in known:
            solve(draft, each)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def likelihood(kernel, y):
    return 0.5 * (y.T @ torch.inverse(kernel) @ y) + 0.5 * torch.logdet(kernel)  # <- inverses
""",
            after="""
import torch

def likelihood(kernel, y):
    return 0.5 * (torch.linalg.solve(kernel, y.T, left=False) @ y) + 0.5 * torch.logdet(kernel)
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def ridge(x, y, weight):
    gram = x.mT @ x + weight * torch.eye(x.size(-1))
    inverse = torch.linalg.inv(gram)
    return inverse @ (x.mT @ y)  # <- inverses
""",
            after="""
import torch

def ridge(x, y, weight):
    gram = x.mT @ x + weight * torch.eye(x.size(-1))
    return torch.linalg.solve(gram, x.mT @ y)
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def gain(p, h, r):
    k = torch.matmul(p @ h.mT, (h @ p @ h.mT + r).inverse())  # <- inverses
    return k
""",
            after="""
import torch

def gain(p, h, r):
    k = torch.linalg.solve(h @ p @ h.mT + r, p @ h.mT, left=False)
    return k
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch

def f(kernel, y):
    inverse = torch.inverse(kernel)  # <- inverses
    return inverse @ y, inverse.diagonal()
""",
            after="",
            parameters={"function": 3},
            advice="cholesky_solve",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ny = b @ torch.inverse(a)  # <- inverses\n", "", {"function": 0, "vectors": True}),
        Example(
            "import torch\ny = torch.inverse(a) @ b  # <- inverses\n",
            "",
            {"function": 0, "vectors": True, "many": True},
        ),
        Example("import torch\ny = torch.inverse(a) * b  # <- inverses\n", "", {"function": 0}),
        Example("import torch\ny = f(torch.inverse(a))  # <- inverses\n", "", {"function": 0}),
        Example("import torch\ny = torch.fft.inverse(a) @ b  # <- inverses\n", "", {"function": 0}),
        Example("import torch\ny = torch.linalg.inv(a, out=c) @ b  # <- inverses\n", "", {"function": 0}),
    )


def _in_source(inverse: Inverse) -> bool:
    return bool(found_in(inverse.function, lambda draft: _lines(draft, inverse)))


def _lines(draft: Draft, inverse: Inverse) -> list[int]:
    there = inverses(draft, inverse.function[1])
    return [draft.line(each.product if isinstance(each, Inverted) else each) for each in there]
