"""GPU memory is fragmented: in every step the allocator gives memory back to the driver, to get other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Sources
from advisor.edit.called import calls_in
from advisor.evidence import Change
from advisor.evidence.gpu.allocations import allocations
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, Variable, call_sites, once_fed, unless_source

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_SETTING = "expandable_segments:True"
_NAMES = (_VARIABLE, "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# Share of the device's memory in tensors from which on it is short, not fragmented: nothing but using less helps.
_FULL = 0.9
_BASIS = (
    "what the driver's calls take in the steps; that segments which grow save all of them is PyTorch's claim for sizes "
    'that change ("Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF"), and less where memory is short'
)


class AllocatorRetries(Rule):
    """In every step GPU memory runs out for lack of one piece that is large enough, and the cache is emptied for it.

    PyTorch keeps freed memory in blocks of the sizes that were asked for. Where sizes change from step to step, none of
    the free blocks fits, the driver has nothing left, and all free blocks are given back (``cudaFree``, which waits for
    the GPU) before memory is asked for again (``cudaMalloc``). Expandable segments grow instead: free memory is one
    piece.

    When not: nearly all memory holds tensors; then a smaller batch or activation checkpointing is what helps. On
    Windows, and with ROCm, expandable segments are not there for every version.

    Source: PyTorch docs, ``torch.cuda.memory_stats``: "num_alloc_retries: number of failed cudaMalloc calls that result
    in a cache flush and retry"; CUDA semantics, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    id = "allocator-retries"
    title = "Let GPU memory grow in segments instead of starting over"
    safety = Safety.EXACT
    after = ("empty-cache-in-loop",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        if record is not None and not record.memory.alloc_retries:
            return
        if call_sites(evidence, "empty_cache", every_step=False) or _empties(evidence.source):
            return
        found = allocations(evidence.trace, evidence.steps)
        if not found.given or not found.taken:
            return
        # Of a bare trace only what comes with every step: blocks that are taken are what the first steps are made of.
        if record is None and (found.steps < max(2, len(evidence.steps)) or min(found.given, found.taken) < 1.0):
            return
        estimate, said = once_fed(evidence, Change(remove_allocations=True))
        gain = Gain.prior(estimate, _BASIS)
        if not gain.worth_it:
            return
        share = evidence.memory.share
        retries = record.memory.alloc_retries if record is not None else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=(
                f"The allocator ran out of fitting memory {retries} time(s) in the timed steps: each"
                if retries
                else "Each"
            )
            + f" step gives {found.given:.0f} block(s) of GPU memory back to the driver and takes {found.taken:.0f} "
            f"anew, in {found.seconds * 1e3:.1f} ms of the host's time"
            + (f", while tensors fill {share:.0%} of the memory." if share is not None else ".")
            + said,
            gain=gain,
            evidence={
                "alloc_retries": retries,
                "frees_per_step": found.given,
                "allocations_per_step": found.taken,
                "allocation_s": found.seconds,
                "peak_memory_share": share,
            },
            parameters={"grow": True},
            unmet=_unmet(evidence, share),
        )

    def fix(self, finding: Finding, sources: Sources) -> Variable | Advice:
        text = f"Run the script with {_VARIABLE}={_SETTING}"
        if not finding.parameters.get("grow"):
            return Advice(f"{text}, where its memory is fragmented.", "whether it is, is unknown")
        if finding.unmet:
            return Advice(f"{text}, or use less memory: a smaller batch, activation checkpointing.", finding.unmet[0])
        return Variable({_VARIABLE: _SETTING})

    EXAMPLES = (Example("for x in loader:\n    step(x)\n", "", advice="expandable_segments:True"),)
    LEAVES_ALONE = (Example("for x in loader:\n    step(x)\n", "", {"grow": True}),)


def _unmet(evidence: Evidence, share: float | None) -> tuple[str, ...]:
    """Why segments that grow may not help, or are not there."""
    record = evidence.record
    if record is None:
        unknown = "whether the script calls torch.cuda.empty_cache() in each step is unknown"
        return (*unless_source(evidence, unknown), *(("expandable segments need CUDA",) if evidence.amd else ()))
    unmet = []
    if share is None or share > _FULL:
        unmet.append("the memory is full of tensors, not fragmented")
    if record.environment.platform.startswith("Windows") or record.device.hip:
        unmet.append("expandable segments need CUDA on Linux")
    if any(name in record.environment.variables for name in _NAMES):
        unmet.append(f"{_VARIABLE} is set already: add to what it says")
    return tuple(unmet)


def _empties(source: str) -> bool:
    """Whether a bare trace's script empties the cache itself."""
    return bool(source) and bool(calls_in(Sources(), source, ("empty_cache",)))
