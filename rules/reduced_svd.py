"""A singular value decomposition computes all columns of a factor of which few, or none, are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.decompositions import Decomposition, decompositions, reduce, values_alone
from advisor.edit.finding import found_in, only_line
from advisor.evidence.algebra.decompositions import Decomposed, decomposed
from advisor.evidence.by_function import Function
from advisor.evidence.worked import added_up, of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class ReducedSvd(Rule):
    """``torch.linalg.svd`` of a long matrix computes a square factor of which only the first columns are read.

    By default (``full_matrices=True``) the decomposition of 1000 x 50 has a U of 1000 x 1000: 950 columns that belong
    to no singular value, and take most of the time. With ``full_matrices=False`` U is 1000 x 50, and all that has
    singular values is the same. Where these alone are read, ``torch.linalg.svdvals`` computes no factors; a backward
    needs them, so there it saves nothing more. Reported where the run shows such shapes, and the source shows that
    nothing reads the other columns.

    When not: the null space is wanted, which is what these columns span; or the matrix is long in one call and wide in
    another, where the other factor is cut.

    Source: PyTorch docs, ``torch.linalg.svd``, full_matrices; ``torch.linalg.svdvals``. What is left is estimated by
    operations and measured (`advisor/evidence/algebra/decompositions.py`).
    """

    id = "reduced-svd"
    title = "Compute the factors of the decomposition that are read"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s or evidence.calls is None:
            return
        found, calls = decomposed(evidence), evidence.calls
        by_function: dict[Function, list[Decomposed]] = {}
        for each in found:
            by_function.setdefault(each.function, []).append(each)
        known: dict[Decomposed, bool] = {}
        for there in by_function.values():
            alone = _values(there)
            if alone is not None:
                known.update(dict.fromkeys(there, alone and not any(each.recorded for each in there)))
        left = {each: each.left_values if alone else each.left_reduced for each, alone in known.items()}
        known = {each: alone for each, alone in known.items() if left[each] < 1.0}
        if sum(len(found[each]) for each in known) < 0.5 * len(calls.steps) or not known:
            return
        shares = of_tensors(added_up(calls.shares(found[each], left[each], 1.0) for each in known))
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(known, key=lambda each: each.rows * each.columns * len(found[each]))
        there = by_function[most.function]
        dimensions, short, surplus = _limits(there)
        site = only_line(most.function, lambda draft: _lines(draft, most.function[1], dimensions, short, surplus))
        reads = (
            "reads the singular values alone" if known[most] else f"reads at most {most.short} columns of each factor"
        )
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} decomposes matrices of {most.rows} x {most.columns} in full and {reads}: "
            f"{saved:.0%} of the step that is not needed.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "rows": most.rows,
                "columns": most.columns,
                "decompositions_per_step": sum(len(found[each]) for each in known) / len(calls.steps),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "decompositions": (site,),
                "function": most.function[1],
                "dimensions": dimensions,
                "short": short,
                "surplus": surplus,
                "values": known[most],
                "alone": len({each.function for each in known}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "decompositions") or (None,)
        values = finding.parameters.get("values") is True
        text = f"Compute what is read of the decomposition {where(site)}: "
        text += "torch.linalg.svdvals(A)." if values else "torch.linalg.svd(A, full_matrices=False)."
        function, dimensions, short, surplus = (
            finding.parameters.get(each) for each in ("function", "dimensions", "short", "surplus")
        )
        if site is None or not finding.parameters.get("alone", True):
            return Advice(text, "more than one function decomposes")
        if not (isinstance(function, int) and isinstance(dimensions, int) and isinstance(short, int)):
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = decompositions(draft, function, dimensions, short, surplus if isinstance(surplus, tuple) else (0, 2))
        known = [each for each in there if isinstance(each, Decomposition)]
        if not known or len(known) < len(there) or (values and any(each.values is None for each in known)):
            return Advice(text, "whether the other columns are read cannot be told from the source")
        for each in known:
            (values_alone if values else reduce)(draft, each)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def project(x):
    U, S, Vh = torch.linalg.svd(x)  # <- decompositions
    basis = Vh[:, :8]
    return x @ basis.mT
""",
            after="""
import torch

def project(x):
    U, S, Vh = torch.linalg.svd(x, full_matrices=False)
    basis = Vh[:, :8]
    return x @ basis.mT
""",
            parameters={"function": 3, "dimensions": 3, "short": 24, "surplus": (0,)},
        ),
        Example(
            before="""
from torch import linalg

RANK = 6

def modes(x):
    left = linalg.svd(x, full_matrices=True).U[..., :RANK]  # <- decompositions
    return left.mT @ x
""",
            after="""
from torch import linalg

RANK = 6

def modes(x):
    left = linalg.svd(x, full_matrices=False).U[..., :RANK]
    return left.mT @ x
""",
            parameters={"function": 5, "dimensions": 2, "short": 6, "surplus": (0,)},
        ),
        Example(
            before="""
import torch

def spread(x):
    _, sizes, _ = torch.linalg.svd(x)  # <- decompositions
    return sizes.square().sum()
""",
            after="""
import torch

def spread(x):
    sizes = torch.linalg.svdvals(x)
    return sizes.square().sum()
""",
            parameters={"function": 3, "dimensions": 2, "short": 30, "surplus": (0,), "values": True},
        ),
        Example(
            before="import torch\nrank = (torch.linalg.svd(x)[1] > 1e-3).sum()  # <- decompositions\n",
            after="import torch\nrank = (torch.linalg.svdvals(x) > 1e-3).sum()\n",
            parameters={"function": 0, "dimensions": 2, "short": 30, "surplus": (0,), "values": True},
        ),
        Example(
            before="import torch\nU, S, Vh = torch.linalg.svd(x)  # <- decompositions\ndel U, Vh\n",
            after="import torch\nU, S, Vh = torch.linalg.svd(x, full_matrices=False)\ndel U, Vh\n",
            parameters={"function": 0, "dimensions": 2, "short": 30, "surplus": (0,)},
        ),
    )
    LEAVES_ALONE = tuple(
        Example(
            f"import torch\n{code}  # <- decompositions\n{read}\n",
            "",
            {"function": 0, "dimensions": 2, "short": 8, "surplus": (0,)},
        )
        for code, read in (
            ("U, S, Vh = torch.linalg.svd(x)", "null = U[:, 8:]"),
            ("U, S, Vh = torch.linalg.svd(x)", "y = U[:, :9]"),
            ("U, S, Vh = torch.linalg.svd(x)", "y = U[:, -1]"),
            ("U, S, Vh = torch.linalg.svd(x)", "y = U[:8]"),  # rows of it
            ("U, S, Vh = torch.linalg.svd(x)", "y = U[:, :r]"),
            ("U, S, Vh = torch.linalg.svd(x)", "y = U.mT @ x"),
            ("U, S, Vh = torch.linalg.svd(x)", "def f():\n    return U"),
            ("parts = torch.linalg.svd(x)", "y = parts[1]"),
            ("U, S, Vh = torch.linalg.svd(x, driver='gesvd')", "y = S"),
            ("y = torch.linalg.svd(x)[0]", "print(y)"),
            ("y = f(*torch.linalg.svd(x))", ""),
        )
    )


def _limits(there: list[Decomposed]) -> tuple[int, int, tuple[int, ...]]:
    """(dimensions, singular values, factors with more columns) that hold for all of these calls of one function.

    Zero dimensions where they differ.
    """
    dimensions = {each.dimensions for each in there}
    full = [each for each in there if each.full]
    surplus = {0 for each in full if each.rows > each.columns} | {2 for each in full if each.columns > each.rows}
    return dimensions.pop() if len(dimensions) == 1 else 0, min(each.short for each in there), tuple(sorted(surplus))


def _values(there: list[Decomposed]) -> bool | None:
    """Whether a function reads the singular values alone; None where it reads the other columns, or may."""
    function = there[0].function
    dimensions, short, surplus = _limits(there)

    def read(draft: Draft) -> list[int]:
        calls = decompositions(draft, function[1], dimensions, short, surplus)
        known = [each for each in calls if isinstance(each, Decomposition)]
        return [each.values is not None for each in known] if len(known) == len(calls) else []

    alone = found_in(function, read) if dimensions and len(surplus) < 2 else []
    return all(alone) if alone else None


def _lines(draft: Draft, function: int, dimensions: int, short: int, surplus: tuple[int, ...]) -> list[int]:
    calls = decompositions(draft, function, dimensions, short, surplus)
    return [draft.line(each.call if isinstance(each, Decomposition) else each) for each in calls]
