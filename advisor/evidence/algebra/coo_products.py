"""Products with sparse matrices in COO, which a CPU goes through entry by entry, on one core.

Told by the operators: a product that asks for a matrix's indices and values is one of COO; of CSR it asks for rows and
columns. In the backward the matrix is turned around anew each time, by a copy of all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_callers
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints, Trace

_PRODUCT, _INDICES, _TURNS = "aten::addmm", "aten::_indices", "aten::transpose"
# What makes such a matrix, or puts it in order: of one that each step makes anew nothing is known.
_MAKES = (
    *("aten::sparse_coo_tensor", "aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::_sparse_coo_tensor_unsafe"),
    *("aten::to_sparse", "aten::_to_sparse", "aten::_coalesce"),
)
_TRAINS = "aten::sparse_mask"  # keeps of a product's gradient what is for its entries


@dataclass(frozen=True)
class CooProducts:
    """Of a step: how many products, seconds of the forward's and of the backward's, and of what turns the matrices.

    ``function``: the user's that multiplies, its file and first line; None where that is not known.
    """

    calls: float
    forward_s: float
    backward_s: float
    turning_s: float
    function: tuple[str, int] | None


def coo_products(evidence: Evidence) -> CooProducts | None:
    """Those of the steps; None without any, and where a step makes such a matrix itself, or trains its entries."""
    trace, steps = evidence.trace, evidence.steps
    products, turns = _rows(trace, evidence.nesting, _PRODUCT), _rows(trace, evidence.nesting, _TURNS)
    inside = assign(steps, trace.operators.start) >= 0
    products, turns = products[inside[products]], turns[inside[turns]]
    # Gradients of embeddings are made in the backward, and the optimizer that takes them puts them in order.
    updating = evidence.host.optimizer.contains(trace.operators.start)
    aside = evidence.host.backward.contains(trace.operators.start) | updating
    makes = names_like(trace, trace.operators.name, _MAKES.__contains__) & inside & ~aside
    trains = names_like(trace, trace.operators.name, _TRAINS.__eq__) & inside & ~updating
    if not len(products) or not len(steps) or makes.any() or trains.any():
        return None
    took = (trace.operators.end - trace.operators.start) / 1e9 / len(steps)
    back = evidence.host.backward.contains(trace.operators.start[products])
    return CooProducts(
        calls=float((~back).sum()) / len(steps),
        forward_s=float(took[products[~back]].sum()),
        backward_s=float(took[products[back]].sum()),
        turning_s=float(took[turns].sum()),
        function=_function(evidence),
    )


def _rows(trace: Trace, nesting: Nesting, name: str) -> Ints:
    """Operators of that name which ask for a matrix's indices themselves."""
    asks = names_like(trace, trace.operators.name, _INDICES.__eq__)
    around = nesting.parent[asks]
    named = names_like(trace, trace.operators.name, name.__eq__)
    return np.unique(around[(around >= 0) & named[around]])


def _function(evidence: Evidence) -> tuple[str, int] | None:
    """The innermost function of the user's around the first product of the window with stacks."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return None
    steps = step_windows(trace)
    rows = _rows(trace, Nesting(trace), _PRODUCT)
    start = trace.operators.start[rows]
    rows = rows[(assign(steps, start) >= 0) & ~Host(trace, steps).backward.contains(start)]
    found = users_callers(trace, int(rows[0]), record) if len(rows) else []
    return found[0] if found else None
