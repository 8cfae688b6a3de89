"""The Jacobian of a whole batch is taken, and only what each sample's outputs have of its own inputs is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.batch_jacobians import OwnParts, batch_jacobians, of_the_sum
from advisor.edit.finding import found_in, only_line
from advisor.evidence import Change
from advisor.evidence.algebra.jacobians import LoopedJacobian, looped_jacobians
from advisor.evidence.outside import function_around
from advisor.fixes import edited
from advisor.harness.jacobians import KIND
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_LEAST_SAMPLES = 4
# One forward and a backward for each output of a sample take of what a forward and as many backwards as outputs do:
# this, times 1 + outputs of a sample over 1 + outputs. A prior; of dozens of samples hardly anything is left anyway.
_OF_PASSES = 1.4


class BatchJacobian(Rule):
    """``jacobian(f, x)`` of a whole batch takes a backward for each sample, and nearly all of what it has is zero.

    What a sample's outputs change by with the inputs of another one is nothing: of samples times samples numbers each
    sample's own are read (``diagonal``, ``einsum("iij->ij")``), and every one of the backwards goes through the whole
    batch. The sum over the samples has those as its gradient: one backward gives them all, or one for each output of a
    sample. With ``create_graph=True`` the loss then goes back through one, too, not through all of them.

    When not: the samples of a batch meet in the model (batch norm in training, attention between them, the players of
    a game): there the other parts are not zero. Reported where the run has looked at some, and all of these were, and
    where the source shows that no other part is read; on a CPU only, where it was measured.

    Source: PyTorch docs, ``torch.autograd.functional.jacobian``, ``torch.autograd.grad`` (whose outputs are summed);
    PyTorch tutorial, "Jacobians, Hessians, hvp, vhp, and more", "Batch Jacobian and Batch Hessian". The gain is the
    share of the steps that it takes with the backward for it, less one backward for each output of a sample.
    """

    id = "batch-jacobian"
    title = "Differentiate the sum over the batch, not each sample alone"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, share = looped_jacobians(evidence)
        known = {each: _dimensions(each) for each in counts}
        if not counts or any(dimensions != len(each.shape) for each, dimensions in known.items()):
            return
        most = max(counts, key=lambda each: each.outputs)
        if any(each.shape[0] < _LEAST_SAMPLES for each in counts):
            return
        if not all(_is_of_each(evidence, *each.function) for each in counts):
            return
        left = min(1.0, _OF_PASSES * (1 + _of_a_sample(most)) / (1 + most.outputs))
        gone = share * evidence.step_s * (1.0 - left)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=gone)))
        if not gain.worth_it:
            return
        site = only_line(most.function, lambda draft: _lines(draft, most.function[1]))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step goes {most.outputs} times back through the batch at {at(site)}, for the "
            f"derivatives of {most.shape[0]} samples by their own inputs.",
            gain=gain,
            evidence={
                "jacobian_share": share,
                "backwards": most.outputs,
                "samples": most.shape[0],
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={"jacobians": (site,), "function": most.function[1]},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "jacobians") or (None,)
        function = finding.parameters.get("function")
        text = (
            f"Take the Jacobian {where(site)} of the sum over the samples: jacobian(lambda x: f(x).sum(0), x), or "
            "torch.autograd.grad(f(x).sum(), x)."
        )
        if site is None or not isinstance(function, int):
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        there = batch_jacobians(draft, function)
        if not there or not all(isinstance(each, OwnParts) and of_the_sum(draft, each) for each in there):
            return Advice(text, "what is read of it cannot be told from the source")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def flux(model, x):
    jac = torch.autograd.functional.jacobian(model, x, create_graph=True)  # <- jacobians
    return torch.diagonal(jac, dim1=0, dim2=1).t()
""",
            after="""
import torch

def flux(model, x):
    jac = torch.autograd.functional.jacobian(lambda given: model(given).sum(), x, create_graph=True)
    return jac
""",
            parameters={"function": 3},
        ),
        Example(
            before="""
import torch
from torch.autograd.functional import jacobian

rates = torch.einsum("bibj->bij", jacobian(lambda z: field(t, z), states))  # <- jacobians
""",
            after="""
import torch
from torch.autograd.functional import jacobian

rates = jacobian(lambda z: field(t, z).sum(0), states).transpose(0, 1)
""",
            parameters={"function": 0},
        ),
        Example(
            before="""
import torch

def slopes(f, x):
    rows = torch.arange(len(x))
    every = torch.autograd.functional.jacobian(f, x)  # <- jacobians
    return every[rows, rows]
""",
            after="""
import torch

def slopes(f, x):
    rows = torch.arange(len(x))
    every = torch.autograd.functional.jacobian(lambda given: f(given).sum(), x)
    return every
""",
            parameters={"function": 3},
        ),
    )
    LEAVES_ALONE = (
        Example(
            "import torch\njac = torch.autograd.functional.jacobian(f, x)  # <- jacobians\nlog(jac[0], jac)\n",
            "",
            parameters={"function": 0},
        ),
        Example(
            "import torch\njac = torch.autograd.functional.jacobian(f, (x, y))  # <- jacobians\nlog(jac.diagonal())\n",
            "",
            parameters={"function": 0},
        ),
        Example(
            "import torch\njac = torch.autograd.functional.jacobian(f, x)  # <- jacobians\nlog(jac.diagonal(1))\n",
            "",
            parameters={"function": 0},
        ),
        Example(
            "import torch\nj = torch.autograd.functional.jacobian(f, x)  # <- jacobians\nlog(j[range(8), range(8)])\n",
            "",
            parameters={"function": 0},
        ),
    )


def _lines(draft: Draft, function: int) -> Iterator[int]:
    for each in batch_jacobians(draft, function):
        yield draft.line(each.call if isinstance(each, OwnParts) else each)


def _dimensions(found: LoopedJacobian) -> int | None:
    """Of the outputs, as what reads the Jacobian has them; None where more of it is read, or that cannot be told."""
    told = found_in(
        found.function,
        lambda draft: [
            each.dimensions if isinstance(each, OwnParts) else 0 for each in batch_jacobians(draft, found.function[1])
        ],
    )
    return told[0] if told and len(set(told)) == 1 and told[0] else None


def _of_a_sample(found: LoopedJacobian) -> int:
    return found.outputs // found.shape[0]


def _is_of_each(evidence: Evidence, file: str, line: int) -> bool:
    """Whether the run has looked at Jacobians of that function, and no sample's outputs depend on another's inputs."""
    seen = [
        each
        for each in call_sites(evidence, KIND, every_step=False)
        if each.site.file == file and function_around(file, each.site.line) == line
    ]
    return bool(seen) and not any(each.details.get("meets", True) for each in seen)
