"""Products with a matrix that is zeros but for a few numbers, stored as if it were full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where
from advisor.shared.other_products import saved_s

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import SparseProduct

_LEAST_GAIN = 1.15
# Seconds of two cores with AVX-512, for eleven matrices of 600 to 8,000 rows, 0.1% to 10% of them numbers, times 8 to
# 320 columns: a full product 9.2e-12 of a multiplication with addition; one of CSR 0.03e-9 to 0.05e-9 of a number and
# column, and 0.02e-3 of a call; its backward, which turns the matrix around anew each time, 0.024e-9 to 0.045e-9 of
# them, 20e-9 to 27e-9 of a number, and 0.2e-3 of a call. Another machine is taken to be faster or slower in all of it.
_FULL_S, _SPARSE_S, _CALL_S = 9.2e-12, 0.05e-9, 0.03e-3
_TURNED_S, _BACKWARD_CALL_S = 25e-9, 0.25e-3
_MADE_S = 1.3e-9  # to_sparse_csr() of another matrix in each step, a number: 1.0e-9 to 1.6e-9 of seven such matrices
_MADE_EACH_STEP = 0.5  # matrices of a step that none before it had: those of one step, and all of the next


class SparseProducts(Rule):
    """A step multiplies with a matrix of which nearly all numbers are zeros.

    A graph's adjacency, a batch of graphs as blocks of one matrix, an incidence matrix, an interpolation between grids:
    of thousands of columns a row has a few numbers. As a full matrix it is read and multiplied whole;
    ``to_sparse_csr()`` keeps the numbers alone, and ``A @ x`` multiplies with these, in the backward as well: for
    matrices of 0.1% to 2% a hundredth to a third of the time. Reported where a run has seen it: what is multiplied, how
    much of it is not zero, and whether each step has another matrix, which would be made sparse each time.

    When not: a matrix that is trained; an exporter or compiler that knows no sparse tensors; 16 bits, in which a CPU
    has no sparse product. On a GPU it is not reported: there calls take no time of their own.

    Source: Kipf and Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks", section 2.3 (a
    sparse product, linear in the edges); PyTorch docs, ``torch.sparse``, "Sparse CSR Tensor". The gain is by the time
    of the full products in the run, and what eleven matrices took both ways on two cores.
    """

    id = "sparse-product"
    title = "Store a matrix that is mostly zeros as a sparse one"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.sparse_products or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = record.sparse_products
        now = sum(each.seconds + each.differentiated_s for each in lines)
        saved = sum(map(_saved_s, lines))
        if saved <= 0:
            return
        gain = Gain.of(evidence.what_if(Change(remove_host_s=min(saved, now))))
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        others = f", and at {len(lines) - 1} more" if len(lines) > 1 else ""
        made = sum(each.made for each in lines) >= _MADE_EACH_STEP
        which = "another one in each step" if made else "the same in each step"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(now / step_s, 1.0):.0%} of the step multiplies with a matrix of {longest.rows:,} x "
            f"{longest.columns:,} numbers, at {at(longest.site)}{way}{others}, and all but {longest.numbers:,} of them "
            f"({_filled(longest):.2g}%) are zeros, {which}.",
            gain=gain,
            evidence={
                "rows": longest.rows,
                "columns": longest.columns,
                "numbers": longest.numbers,
                "full_products_s": now,
                "seconds_saved": saved,
                "step_s": step_s,
            },
            site=longest.site,
            parameters={"made": made},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        if finding.parameters.get("made"):
            return Advice(
                f"Make what is multiplied {where(finding.site)} sparse where each batch makes it, before the layers: "
                "A = A.to_sparse_csr(), which A @ x and torch.mm(A, x) take as it is (for an x of two dimensions), and "
                "so does their backward. Better still, never write the zeros: keep each sample's edges, add to them "
                "the number of the rows before it, and build torch.sparse_coo_tensor(edges, weights, (n, n))"
                ".to_sparse_csr(), or sum with torch.zeros_like(x).index_add(0, to, x[of]); where all samples have "
                "about as many rows, torch.bmm of a batch (B, n, n) that is padded to the longest.",
                "what else reads the matrix, element by element or as a full one, only its author can tell",
            )
        return Advice(
            f"Make what is multiplied {where(finding.site)} sparse once, where it is made: A = A.to_sparse_csr(). "
            "A @ x and torch.mm(A, x) then take it as it is, for an x of two dimensions (of three: with its samples "
            "side by side, as columns), and so does their backward, which turns the matrix around in each step: with "
            "the transposed one at hand, in a torch.autograd.Function, it takes less (see advisor rules coo-product).",
            "what else reads the matrix, element by element or as a full one, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="hidden = torch.mm(adj, support) + self.bias  # <-\n",
            after="",
            advice="A = A.to_sparse_csr()",
        ),
        Example(
            before="hidden = torch.matmul(batch_adj, hidden)  # <-\n",
            after="",
            parameters={"made": True},
            advice="keep each sample's edges",
        ),
    )
    LEAVES_ALONE = (Example("hidden = torch.sparse.mm(adj, support)  # <-\n", ""),)


def _filled(line: SparseProduct) -> float:
    """Percent of the matrix that is not zero."""
    return 100.0 * line.numbers / (line.rows * line.columns)


def _saved_s(line: SparseProduct) -> float:
    """Seconds of a step that sparse products would save of a line; negative where they take longer."""
    forward = _SPARSE_S * line.needed + _CALL_S * line.calls
    backward = _SPARSE_S * line.needed + _TURNED_S * line.turned + _BACKWARD_CALL_S * line.calls
    forward += _MADE_S * line.made_numbers + _TURNED_S * line.turned * line.made / max(line.calls, 1.0)
    return saved_s(line, _FULL_S * line.multiplied, forward, backward)
