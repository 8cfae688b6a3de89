"""The cache of GPU memory is emptied in every step, and filled again by the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts, Sources
from advisor.edit.called import calls_in
from advisor.edit.left_out import leave_out
from advisor.evidence import Change
from advisor.evidence.gpu.allocations import allocations
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, once_fed, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence


class EmptyCacheInLoop(Rule):
    """Each step gives the GPU memory that PyTorch keeps in reserve back to the driver, and has to ask for it again.

    ``torch.cuda.empty_cache()`` calls ``cudaFree`` for all that is not in use, which waits until the GPU has finished
    everything; the next step then calls ``cudaMalloc`` for the same memory, some 0.1 to 1 ms each. It does not prevent
    running out of memory: when the driver has no more, PyTorch empties its cache by itself before it gives up.

    When not: another process on the same GPU needs the memory between the steps; after an evaluation with other sizes,
    once an epoch.

    Source: PyTorch docs, ``torch.cuda.empty_cache``: "empty_cache() doesn't increase the amount of GPU memory available
    for PyTorch"; CUDA C++ programming guide, "Implicit Synchronization".
    """

    id = "empty-cache-in-loop"
    title = "Do not empty the GPU memory cache in every step"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        places = sites(call_sites(evidence, "empty_cache"))
        if evidence.record is None and evidence.source:
            places = calls_in(Sources(), evidence.source, ("empty_cache",))
        if not places or not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        found = allocations(evidence.trace, evidence.steps)
        estimate, said = once_fed(evidence, Change(remove_allocations=True))
        gain = Gain.of(estimate)
        if found.given < 1 or not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{', '.join(dict.fromkeys(map(at, places)))} empties the cache of GPU memory in "
            f"every step: {found.given:.0f} blocks are given back to the driver and {found.taken:.0f} taken anew, "
            f"{found.seconds * 1e3:.1f} ms of the host's time.{said}",
            gain=gain,
            evidence={
                "frees_per_step": found.given,
                "allocations_per_step": found.taken,
                "allocation_s": found.seconds,
                "step_s": evidence.step_s,
            },
            site=places[0],
            # The source alone does not tell which of several calls each step passes.
            parameters={"places": places if evidence.record is not None or len(places) == 1 else ()},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        found = site_list(finding, "places")
        where = ", ".join(dict.fromkeys(at(site) for site in found)) or "your script"
        text = f"Remove empty_cache() from the steps, at {where}; once an epoch is often enough."
        if not found:
            return Advice(text, "the places are unknown")
        drafts = Drafts(sources)
        for site in found:
            if why := leave_out(drafts, site, ("empty_cache",)):
                return Advice(text, f"the call at {at(site)} {why}")
        return edited(drafts, text, f"Keep the cache of GPU memory between the steps, at {where}.")

    EXAMPLES = (
        Example(
            before="""
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    del x, y
    torch.cuda.empty_cache()  # <- places
print(loss)
""",
            after="""
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    del x, y
print(loss)
""",
        ),
        Example(
            before="def free():\n    gc.collect()\n    empty_cache()  # <- places\n",
            after="def free():\n    gc.collect()\n",
        ),
        Example(
            before="while True:\n    step()\n    if on_gpu:\n        torch.cuda.memory.empty_cache()  # <- places\n",
            after="while True:\n    step()\n    if on_gpu:\n        pass\n",
        ),
    )
    LEAVES_ALONE = (
        Example("for x in xs:\n    step(x); torch.cuda.empty_cache()  # <- places=torch.cuda.empty_cache()\n", ""),
        Example("for x in xs:\n    if on: torch.cuda.empty_cache()  # <- places\n", ""),
        Example("trainer.train()  # <- places\n", ""),
        Example(
            "try:\n    step(x)\nexcept RuntimeError:\n    del x\n    empty_cache()  # <- places\n    step(half)\n", ""
        ),
    )
