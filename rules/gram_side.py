"""The Gram matrix of a matrix is computed along its longer side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.grams import Gram, grams, is_penalty, is_polynomial, turn
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.grams import LongGram, long_grams
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class GramSide(Rule):
    """``x @ x.mT`` of a matrix with more rows than columns has more numbers than ``x`` itself; ``x.mT @ x`` has fewer.

    Muon orthogonalizes updates by a polynomial of ``x @ x.mT`` that is multiplied with ``x``: of a tall matrix the
    same comes, turned, of its transpose, whose Gram matrix is as small as its columns are few; the products take a part
    of the time that goes with the ratio of the sides, their powers with its cube. A penalty on weights that are not
    orthogonal, ``((w @ w.mT - eye) ** 2).sum()``, has the same gradient for either side. Reported where the run shows
    the products with their shapes, and the source that nothing but such a polynomial or penalty becomes of them.

    When not: the Gram matrix itself is wanted (similarities of all pairs, attention: not reported); another function
    of it than a polynomial is multiplied with the matrix.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", whose reference
    implementation transposes tall matrices; p(X X') X = X p(X' X) for every polynomial p, and ||X X' - I||^2 =
    ||X' X - I||^2 + rows - columns. The gain is what these products took in the run.
    """

    id = "gram-side"
    title = "Compute the Gram matrix of the shorter side"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = long_grams(evidence, _in_source)
        if not found.counts:
            return
        shares = of_tensors(found.shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(found.counts, key=lambda each: each.longer**2 * each.shorter * found.counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} multiplies matrices of {most.longer} by {most.shorter} numbers with their transpose "
            f"to one of {most.longer} by {most.longer}, where {most.shorter} by {most.shorter} would do: {saved:.0%} "
            "of the step is not needed.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "products_per_step": sum(found.counts.values()),
                "longer": most.longer,
                "shorter": most.shorter,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "function": most.function[1],
                "again": most.again,
                "alone": len({each.function for each in found.counts}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        site, function = finding.site, finding.parameters.get("function")
        if not finding.parameters.get("again"):
            return Advice(
                f"Take the Gram matrix of the other side {where(site)}, x.mT @ x for x @ x.mT, and an identity of its "
                "size: the gradient is the same, the penalty differs by a constant.",
                "whether the penalty itself is looked at only its author can tell",
            )
        text = f"Turn the matrix {where(site)} where it has more rows than columns, in front of its Gram matrix, and "
        text += "back behind: if x.size(-2) > x.size(-1): x = x.mT."
        if site is None or not isinstance(function, int):
            return Advice(text, "its place is unknown")
        if not finding.parameters.get("alone", True):
            return Advice(text, "more than one function does so")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        known = grams(draft, function)
        why = turn(draft, known[0]) if len(known) == 1 else "the function has several such products"
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
COEFFS = 3.4445, -4.775, 2.0315

def newton_schulz(grad, steps):
    a, b, c = COEFFS
    x = grad / (grad.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.mT  # <-
        x = a * x + (b * s + c * s @ s) @ x
    return x
""",
            after="""
COEFFS = 3.4445, -4.775, 2.0315

def newton_schulz(grad, steps):
    a, b, c = COEFFS
    x = grad / (grad.norm() + 1e-7)
    is_tall = x.size(-2) > x.size(-1)
    if is_tall:
        x = x.mT
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    if is_tall:
        x = x.mT.contiguous()
    return x
""",
            parameters={"function": 3, "again": True},
        ),
        Example(
            before="penalty = ((w @ w.T - torch.eye(len(w))) ** 2).sum()  # <-\n",
            after="",
            parameters={"function": 0, "again": False},
            advice="x.mT @ x for x @ x.mT",
        ),
    )
    LEAVES_ALONE = (
        Example(
            "def f(x, n):\n    eye = torch.eye(len(x))\n    for _ in range(n):\n"
            "        x = (1.5 * eye - 0.5 * x @ x.mT) @ x  # <-\n    return x\n",
            "",
            {"function": 1, "again": True},
        ),
        Example("def f(x):\n    s = x @ x.T  # <-\n    return (s + s @ s) @ x\n", "", {"function": 1, "again": True}),
    )


def _in_source(gram: LongGram) -> bool:
    meant = is_polynomial if gram.again else is_penalty
    known = found_in(gram.function, lambda draft: [meant(draft, each) for each in grams(draft, gram.function[1])])
    return bool(known) and all(known)


def _lines(draft: Draft, gram: LongGram) -> list[int]:
    known: list[Gram] = grams(draft, gram.function[1])
    return [draft.line(each.product) for each in known]
