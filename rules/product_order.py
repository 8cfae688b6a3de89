"""Matrix products are multiplied in an order that takes many times the operations of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.product_chains import Order, product_chains, reorder
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.product_order import Chain, costly_chains
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class ProductOrder(Rule):
    """``A @ B @ x`` multiplies two large matrices first, where ``A @ (B @ x)`` never has anything as large.

    Python multiplies from left to right. Of two square matrices and a narrow one that takes n³ operations and a matrix
    of n², from right to left 2·k·n² and nothing wider than k: powers of a graph's matrix before its features, a mask or
    a kernel before a vector, ``(q @ k.mT) @ v`` without a softmax in between. The result is the same but for rounding.
    Reported where the run shows the products with their shapes, one after the other, and the source the chain.

    When not: the product of the first two is needed elsewhere, or is the same in every step (then it is best computed
    once, beforehand).

    Source: Cormen et al., Introduction to Algorithms, "Matrix-chain multiplication"; PyTorch docs,
    ``torch.linalg.multi_dot``, which chooses the order by itself. The gain is what these products took in the run, by
    the operations that are left, with those of their backward.
    """

    id = "product-order"
    title = "Multiply the matrices in the order that takes fewest operations"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = costly_chains(evidence)
        counts = {each: times for each, times in found.counts.items() if times >= 0.5 and _in_source(each)}
        if not counts:
            return
        shares = of_tensors(found.shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: max(found.largest[each], default=0))
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} multiplies {most.operands} matrices from left to right, by way of one of "
            f"{'x'.join(map(str, found.largest[most]))}: in another order {saved:.0%} of the step is not needed.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "chains_per_step": sum(counts.values()),
                "largest": "x".join(map(str, found.largest[most])),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "products": (site,),
                "function": most.function[1],
                "orders": tuple(found.in_order.get(most.function, ())),
                "alone": len({each.function for each in counts}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "products") or (None,)
        text = f"Put parentheses around the products {where(site)}, so that the narrow one comes first: A @ (B @ x) "
        text += "for A @ B @ x; torch.linalg.multi_dot([A, B, x]) finds the best order by itself."
        orders, function = finding.parameters.get("orders"), finding.parameters.get("function")
        if site is None or not isinstance(orders, tuple) or not isinstance(function, int):
            return Advice(text, "its place is unknown")
        if not finding.parameters.get("alone", True):
            return Advice(text, "more than one function multiplies so")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        for length in dict.fromkeys(length for length, _ in orders):
            why = _reorder_all(draft, function, length, [order for each, order in orders if each == length])
            if why:
                return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
class Propagate:
    def forward(self, graph, x):
        h = (graph @ graph @ x @ self.first).relu()  # <- products
        return graph @ graph @ h @ self.second
""",
            after="""
class Propagate:
    def forward(self, graph, x):
        h = (graph @ (graph @ (x @ self.first))).relu()
        return graph @ (graph @ h) @ self.second
""",
            parameters={"function": 2, "orders": ((4, (0, (1, (2, 3)))), (4, ((0, (1, 2)), 3))) * 2},
        ),
        Example(
            before="""
import torch

def attend(q, k, v):
    scores = torch.matmul(q, k.mT)
    return torch.matmul(scores, v)  # <- products
""",
            after="""
import torch

def attend(q, k, v):
    return torch.matmul(q, torch.matmul(k.mT, v))
""",
            parameters={"function": 3, "orders": ((3, (0, (1, 2))),)},
        ),
        Example(  # bmm takes no matrix of two dimensions
            before="""
import torch

def scores(q, w, k):
    return torch.bmm(q @ w, k.transpose(1, 2)).softmax(-1)  # <- products
""",
            after="""
import torch

def scores(q, w, k):
    return (q @ (w @ k.transpose(1, 2))).softmax(-1)
""",
            parameters={"function": 3, "orders": ((3, (0, (1, 2))),)},
        ),
        Example(
            before="def solve(a, b, x):\n    return -(a @ b @ x + 1)  # <- products\n",
            after="def solve(a, b, x):\n    return -(a @ (b @ x) + 1)\n",
            parameters={"function": 1, "orders": ((3, (0, (1, 2))),)},
        ),
    )
    LEAVES_ALONE = (
        Example(
            "def f(a, b, x):\n    return a @ b @ x  # <- products\n",
            "",
            {"function": 1, "orders": ((3, (0, (1, 2))), (3, ((0, 1), 2)))},  # of two different ones
        ),
        Example(
            "def f(a, b, x):\n    both = a @ b\n    return both @ x + both  # <- products\n",
            "",
            {"function": 1, "orders": ((3, (0, (1, 2))),)},
        ),
        Example("def f(a, x):\n    return a @ x  # <- products\n", "", {"function": 1, "orders": ((3, (0, (1, 2))),)}),
    )


def _reorder_all(draft: Draft, function: int, length: int, orders: list[Order]) -> str:
    """Have the chains of a function be multiplied in these orders; why not, as a clause.

    A step may call the function several times, each with as many chains as its source has.
    """
    chains = product_chains(draft, function, length)
    if not chains:
        return "the products are not written in one expression"
    if orders != orders[: len(chains)] * (len(orders) // len(chains)):
        return "which of the products there are meant cannot be told"
    if any("#" in draft.code(each.whole) for each in chains):
        return "comments stand between the products"
    for each, order in zip(chains, orders, strict=False):
        reorder(draft, each, order)
    return ""


def _in_source(chain: Chain) -> bool:
    return bool(found_in(chain.function, lambda draft: _lines(draft, chain)))


def _lines(draft: Draft, chain: Chain) -> list[int]:
    return [draft.line(each.whole) for each in product_chains(draft, chain.function[1], chain.operands)]
