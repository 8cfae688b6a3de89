"""A stage of a GPU's step is computed by the CPU, while the GPU waits for what comes of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gpu.detours import detours
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, once_fed, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite

_NAMED = 4  # so many places are named


class CpuOpsBetweenKernels(Rule):
    """In every step the CPU computes something on tensors that then go to the GPU, which could have computed it.

    An augmentation of the batch before its copy, a ``torch.where`` over it, a mask from NumPy behind ``.cpu()``: the
    GPU does such work some hundred times as fast, and while the CPU is at it, nothing is launched, so the GPU's queue
    runs empty. A tensor that is fetched, worked on and sent back costs two copies and a wait as well. Copied first and
    computed there, it is a few launches. Loading, picking, collating and an optimizer on the CPU are not meant.

    When not: the operation has no GPU version (SciPy, a tree search); the GPU's memory is full; the GPU has enough
    queued that it never waits (then nothing is predicted, either).

    Source: PyTorch performance tuning guide, "Create tensors directly on the target device" and "Avoid unnecessary
    CPU-GPU synchronization"; C. Rand, "PyTorch Model Performance Analysis and Optimization", part 2, "How to Identify
    and Reduce CPU Computation In Your Training Step with PyTorch Profiler and TensorBoard".
    """

    id = "cpu-ops-between-kernels"
    title = "Compute on the GPU what the CPU computes in between"
    safety = Safety.NUMERIC
    after = ("tensor-born-on-cpu", "copy-pinned-async")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        found = detours(evidence.steps, evidence.device, evidence.nesting)
        if found is None or found.count < 0.5:
            return
        host_s = found.host_s / evidence.inflation
        estimate, said = once_fed(evidence, Change(remove_host_s=host_s, remove_copies=found.round_trips))
        gain = Gain.of(estimate)
        if not gain.worth_it:
            return
        trips = len(found.round_trips) / len(evidence.steps)
        places = sites(_copies(evidence, found.sizes))[:_NAMED]
        named = f" ({', '.join(found.operators)})" if found.operators else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"In each step the CPU computes for {host_s * 1e3:.2f} ms{named} on what then goes to the GPU"
            + (f", at {', '.join(dict.fromkeys(map(at, places)))}" if places else "")
            + (f"; {trips:.0f} tensor(s) were fetched from it for that." if trips >= 0.5 else ".")
            + said,
            gain=gain,
            evidence={
                "stages_per_step": found.count,
                "round_trips_per_step": trips,
                "cpu_s": host_s,
                "operators": ", ".join(found.operators),
                "step_s": evidence.step_s,
            },
            site=places[0] if places else None,
            parameters={"places": places},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        where = ", ".join(dict.fromkeys(at(site) for site in site_list(finding, "places"))) or "your script"
        return Advice(
            f"Copy first and compute then: what is done to the tensor before the copy at {where} goes below it, on the "
            "tensor that is on the GPU already. NumPy's functions have their namesakes in torch (where, clip, roll, "
            "argsort, random: torch.rand(..., device=x.device)); torchvision.transforms.v2 takes batches on a GPU.",
            "whether each of the operations has a version for the GPU, and which copies the rest of the script still "
            "needs, only its author knows",
        )

    EXAMPLES = (
        Example(
            before="for x, y in loader:\n    x = torch.where(x > 0, x, noise)\n    x = x.to(device)  # <- places\n",
            after="",
            advice="before the copy at train.py:3 goes below it",
        ),
    )
    LEAVES_ALONE = (Example("for x, y in loader:\n    x = x.to(device)  # <- places\n", ""),)


def _copies(evidence: Evidence, sizes: Collection[int]) -> tuple[CallSite, ...]:
    """Where what the CPU computes is copied to the GPU, by its bytes.

    A line that copies several tensors a step is known by the last one's: it is named where no other line fits.
    """
    copies = tuple(
        each
        for each in call_sites(evidence, "Tensor.to", "Tensor.cuda")
        if each.details.get("to_device") == "cuda" and each.details.get("from_device", "cpu") == "cpu"
    )
    exact = tuple(each for each in copies if each.details.get("bytes") in sizes)
    several = tuple(each for each in copies if each.calls_per_step > 1 and not each.details.get("pinned"))
    return exact or (several if len(several) == 1 else ())
