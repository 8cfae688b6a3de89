"""Jacobians of many outputs and few inputs are taken backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts, Sources
from advisor.edit.algebra.jacobians import forward, has_functions, reverse_calls
from advisor.edit.finding import only_line
from advisor.evidence.algebra.jacobians import Jacobian, reverse_jacobians
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    file_list,
    model_files,
    site_list,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_FEWER = 2  # times as many outputs as inputs, at least
# jacfwd takes of what jacrev takes, with the backward through either: this, times 1 + inputs over 1 + outputs. Measured
# with torch 2.14 on an EPYC with AVX2, multilayer perceptrons 96 to 256 wide: 0.9 to 1.5, 1.2 in the middle, for 14 of
# 1 to 4 inputs, 3 to 16 outputs and 1000 to 3072 samples; 1.4 to 2.6 for 7 of 400 samples, where calls take most.
_OF_ORDERS = 1.4


class JacobianMode(Rule):
    """A Jacobian of many outputs and few inputs is taken backwards, by ``jacrev``: once for each output.

    ``jacfwd`` goes forward once for each input, with what the outputs change by beside what they are, and has the same
    numbers. The derivative in time of a state of five quantities is one input and five outputs; with autograd above it,
    as for a residual that is trained on, each of the five backwards is differentiated again.

    When not: an operator without a forward derivative is used (PyTorch says so), or one that draws random numbers, for
    which nothing is changed, or there are as many inputs as outputs. Sums are rounded differently.

    Source: PyTorch, ``torch.func``, Jacobians, Hessians, hvp, vhp, and more: jacfwd for more outputs than inputs,
    jacrev for more inputs. The gain is what the run spent on it, less an estimate of the forward.
    """

    id = "jacobian-mode"
    title = "Take the Jacobian forward"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        counts, shares = reverse_jacobians(evidence)
        if not counts or any(each.inputs * _FEWER > each.outputs for each in counts):
            return
        most = max(counts, key=_orders)
        left = min(1.0, _OF_ORDERS * _orders(most))
        shares = of_tensors(shares)
        gone = {name: share * (1.0 - left) for name, share in shares.items()}
        gain = Gain.of(evidence.what_if(without(evidence, gone)))
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        if not gain.worth_it:
            return
        site = only_line(most.function, lambda draft: map(draft.line, reverse_calls(draft)))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step goes {most.outputs} times back through what {at(site)} differentiates, "
            f"once for each output; of inputs there {'is 1' if most.inputs == 1 else f'are {most.inputs}'}.",
            gain=gain,
            evidence={
                "jacobian_share": share,
                "outputs": most.outputs,
                "inputs": most.inputs,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"jacobians": (site,), "files": model_files(evidence)},
            unmet=("It draws random numbers, which jacfwd refuses.",) if any(each.draws for each in counts) else (),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "jacobians") or (None,)
        text = f"Take the Jacobian {where(site)} with torch.func.jacfwd instead of jacrev."
        drafts = Drafts(sources)
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        if any(has_functions(drafts[path]) for path in file_list(finding, "files") if sources.has(path)):
            return Advice(text, "an autograd Function of the script's own has no forward derivative")
        if site is None or not forward(drafts[site.file]):
            return Advice(text, "which of the calls of jacrev it is cannot be told from the source")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch
from torch.func import functional_call, jacrev, vmap

rate = vmap(jacrev(state, argnums=1, has_aux=True), in_dims=(None, 0))  # <- jacobians
""",
            after="""
import torch
from torch.func import functional_call, jacfwd, vmap

rate = vmap(jacfwd(state, argnums=1, has_aux=True), in_dims=(None, 0))
""",
        ),
        Example(
            before="""
import torch

def rates(f, t):
    return torch.func.jacrev(f)(t)  # <- jacobians
""",
            after="""
import torch

def rates(f, t):
    return torch.func.jacfwd(f)(t)
""",
        ),
    )
    LEAVES_ALONE = (
        Example("from torch.func import jacrev\na = jacrev(f, chunk_size=4)(x)  # <- jacobians\n", ""),
        Example("from torch.func import jacrev\n__all__ = ['jacrev']\na = jacrev(f)(x)  # <- jacobians\n", ""),
        Example("from torch.func import jacrev\na = jacrev(f)(x)  # <- jacobians\nb = jacrev(g)(x)\n", ""),
        Example("from torch.func import jacfwd, jacrev\na = jacrev(jacfwd(f))(x)  # <- jacobians\n", ""),
        Example("import torch.func as F\nhow = F.jacrev\na = how(f)(x)  # <- jacobians\n", ""),
    )


def _orders(found: Jacobian) -> float:
    return (1 + found.inputs) / (1 + found.outputs)
