"""An einsum of several operands is multiplied from left to right, which takes many times the operations of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.einsums import Einsum, einsums, reorder
from advisor.errors import AdvisorError
from advisor.evidence.algebra.einsum_order import Costly, costly_einsums
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class EinsumOrder(Rule):
    """``torch.einsum("ij,jk,bi->bk", A, B, x)`` multiplies two large operands first, and the small one at the end.

    PyTorch takes two operands at a time, from left to right, unless opt_einsum is installed, which it then asks for the
    best order. With the operands in another order what stands between is smaller: ``"bi,ij,jk->bk"`` never has A times
    B. Reported where the run shows the call with the sizes of its operands, and the source its equation; the backward
    counts as well.

    When not: opt_einsum will be installed where it matters; the equation has ``...`` or a diagonal, or an operand is
    broadcast (then nothing is said).

    Source: PyTorch docs, ``torch.einsum`` and ``torch.backends.opt_einsum``: "contract left to right". The gain is what
    the products of these calls took in the run, by the operations that are left.
    """

    id = "einsum-order"
    title = "Give einsum its operands in the order that takes fewest operations"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = costly_einsums(evidence, lambda function: _written(*function))
        counts = {each: times for each, times in found.counts.items() if times >= 0.5}
        shares = of_tensors(found.shares)
        if not counts or not shares:
            return
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: (counts[each] * each.times, -each.written.line))
        site = _site(most)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} multiplies {len(most.written.terms)} operands from left to right, which takes "
            f"{most.times:.3g} times the operations of another order: {saved:.0%} of the step is not needed.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "einsums_per_step": sum(counts.values()),
                "times_the_operations": most.times,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "einsums": tuple(_site(each) for each in counts),
                "functions": tuple(each.function[1] for each in counts),
                "orders": tuple(each.order for each in counts),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        places = site_list(finding, "einsums")
        text = f"Give einsum its operands {where(places[0] if places else None)} in the order that takes fewest "
        text += "operations from left to right; or install opt_einsum, which PyTorch asks for the order."
        functions, orders = finding.parameters.get("functions"), finding.parameters.get("orders")
        if not places or not isinstance(functions, tuple) or not isinstance(orders, tuple):
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        for site, function, order in zip(places, functions, orders, strict=True):
            draft = drafts[site.file]
            there = [each for each in einsums(draft, function) if each.line == site.line]
            why = reorder(draft, function, there[0], order) if len(there) == 1 else "there are several on the line"
            if why:
                return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def forward(self, x):
    return torch.einsum("ij,jk,bi->bk", self.a, self.b, x)  # <- einsums
""",
            after="""
import torch

def forward(self, x):
    return torch.einsum("bi,ij,jk->bk", x, self.a, self.b)
""",
            parameters={"functions": (3,), "orders": ((2, 0, 1),)},
        ),
        Example(
            before="""
from torch import einsum

y = einsum('ab, bc, cd', p, q, r)  # <- einsums
""",
            after="""
from torch import einsum

y = einsum('cd,bc,ab->ad', r, q, p)
""",
            parameters={"functions": (0,), "orders": ((2, 1, 0),)},
        ),
    )
    LEAVES_ALONE = (
        Example(  # whose dropout would draw in another order
            'import torch\ny = torch.einsum("ab,bc,cd->ad", drop(p), q, drop(r))  # <- einsums\n',
            "",
            {"functions": (0,), "orders": ((2, 1, 0),)},
        ),
        Example(
            'import torch\ny = torch.einsum("...b,bc,cd->...d", p, q, r)  # <- einsums\n',
            "",
            {"functions": (0,), "orders": ((2, 1, 0),)},
        ),
    )


def _written(path: str, line: int) -> Sequence[Einsum]:
    try:
        return einsums(Draft(Sources().source(path)), line)
    except AdvisorError:
        return ()


def _site(found: Costly) -> Site:
    return Site(found.function[0], found.written.line)
