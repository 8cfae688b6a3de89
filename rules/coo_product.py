"""A sparse matrix in COO is multiplied with in every step, entry by entry, where CSR takes rows, on all cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit.finding import found_in
from advisor.edit.names import full_name
from advisor.evidence import Change
from advisor.evidence.algebra.coo_products import coo_products
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Draft, Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.10
# What is left of a product where the matrix is in CSR: nine matrices of 1,000 to 100,000 rows and 13,000 to a million
# entries, times 1 to 256 columns, on two cores: 0.02 to 0.35 of COO's time, mostly 0.05 to 0.15; in the training of a
# recommender (28,000 rows, 600,000 entries, 64 columns), forwards and backwards, 0.2.
_LEFT = 0.18
_SPARSE = ("torch.sparse.mm", "torch.sparse.addmm", "torch.spmm")
_PRODUCTS = ("torch.mm", "torch.matmul", "torch.addmm")
_METHODS = ("mm", "matmul", "addmm", "spmm")


class CooProduct(Rule):
    """In every step a sparse matrix in COO format is multiplied with, which nothing changes.

    COO keeps a row and a column for each entry, in whatever order; a CPU goes through them one by one, on one core.
    CSR keeps the entries row by row, and the product takes a fraction of the time, on all cores. The backward needs the
    transposed matrix, which is made anew for each product: COO's by a copy, CSR's by sorting, which takes what CSR has
    saved. So the gain in training is had by giving both: a small ``torch.autograd.Function`` that multiplies with the
    matrix forwards and with its transposed one backwards (for a graph without directions the same). Reported where the
    products' operators ask for the entries of COO, and none in a step makes such a matrix.

    When not: another matrix for each batch, or one whose entries are dropped at random; entries that are trained; 16
    bits, in which a CPU has no sparse product. On a GPU it is not reported: there it was not measured.

    Source: PyTorch docs, ``torch.sparse``, "Sparse CSR Tensor": its multiplication is faster than COO's. What CSR
    leaves was measured with nine matrices.
    """

    id = "coo-product"
    title = "Multiply with the sparse matrix in CSR, forwards and backwards"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
            return
        found = coo_products(evidence)
        if found is None:
            return
        saved = (found.forward_s + found.backward_s) * (1.0 - _LEFT) + found.turning_s
        gain = Gain.of(evidence.what_if(Change(remove_host_s=saved / evidence.inflation)))
        if gain.likely < _LEAST_GAIN:
            return
        whole = found.forward_s + found.backward_s + found.turning_s
        site = _line(found.function) if found.function is not None else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(whole / (evidence.trace_step_s or whole), 1.0):.0%} of the step multiplies "
            f"{found.calls:.0f} times with a sparse matrix in COO format, at {at(site)}, entry by entry, "
            "and no step makes it anew.",
            gain=gain,
            evidence={
                "products_per_step": found.calls,
                "forward_s": found.forward_s,
                "backward_s": found.backward_s,
                "turning_s": found.turning_s,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"differentiated": found.backward_s > 0},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        text = f"Convert what is multiplied {where(finding.site)} once, where it is made: A = A.coalesce()"
        text += ".to_sparse_csr(); torch.sparse.mm and @ take it as they did."
        if finding.parameters.get("differentiated"):
            text += (
                " For the backward make At = A.t().to_sparse_csr() there, too (At = A where A is symmetric), and"
                " multiply by a torch.autograd.Function: forward(ctx, A, At, x) keeps ctx.At = At and returns A @ x,"
                " backward(ctx, g) returns None, None, ctx.At @ g."
            )
        return Advice(text, "what else reads the matrix in its present format only its author can tell")

    EXAMPLES = (
        Example(
            before="all_emb = torch.sparse.mm(self.graph, all_emb)  # <-\n",
            after="",
            advice="to_sparse_csr()",
        ),
        Example(
            before="h = torch.spmm(adj, h)  # <-\n",
            after="",
            parameters={"differentiated": True},
            advice="ctx.At @ g",
        ),
    )
    LEAVES_ALONE = (Example("h = self.norm(adj_csr @ h)  # <-\n", ""),)


def _line(function: tuple[str, int]) -> Site | None:
    """The line of the function that multiplies with a sparse matrix; where that is not one, where it begins.

    None of what is in no function, where that is not one line.
    """
    path, first = function
    there = set(found_in(function, lambda draft: _lines(draft, first)))
    return Site(path, there.pop()) if len(there) == 1 else (Site(path, first) if first else None)


def _lines(draft: Draft, first: int) -> Iterator[int]:
    """Of the function that begins there, those with products of matrices: of sparse ones where some say so."""
    calls = [each for each in draft.nodes(cst.Call) if draft.function_line(each) == first]
    named = [(draft.line(each), full_name(draft, each.func) or "", each.func) for each in calls]
    sparse = [line for line, name, _ in named if name in _SPARSE]
    if sparse:
        yield from sparse
        return
    for line, name, called in named:
        if name in _PRODUCTS or (isinstance(called, cst.Attribute) and called.attr.value in _METHODS):
            yield line
    for each in draft.nodes(cst.BinaryOperation):
        if isinstance(each.operator, cst.MatrixMultiply) and draft.function_line(each) == first:
            yield draft.line(each)
