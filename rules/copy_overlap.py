"""Batches are copied to the GPU without blocking the script, and yet the GPU computes nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.gpu.copies import blocking_time
from advisor.evidence.steps import assign
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, framework_of, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite
    from advisor.trace.tables import Ints

_FRAMEWORKS = ("TrainingArguments", "Trainer", "Trainer.fit", "Fabric", "Accelerator")
_MOST_OF_A_BATCH = 4  # tensors that a line copies a step: more are layers' weights, or states, that come and go
_EXPOSED = 0.5  # of the copies' time: from here on they are not hidden


class CopyOverlap(Rule):
    """The copy of each batch to the GPU waits in one queue with the kernels, so nothing is computed while it runs.

    ``non_blocking=True`` and pinned memory let the script go on; the GPU still works off its stream in order: first the
    kernels of the step before, then the copy, then the kernels that need it. GPUs have copy engines beside their
    cores: on a stream of its own the next batch is copied while this one is computed with.

    When not: the copy is short beside the step; the batch does not fit twice into the GPU's memory; the step waits for
    its data, or for the script, anyway.

    Source: NVIDIA developer blog, "How to Overlap Data Transfers in CUDA C/C++"; PyTorch docs, "CUDA semantics", CUDA
    streams, and ``Tensor.record_stream``.
    """

    id = "copy-overlap"
    title = "Copy the next batch while the GPU computes with this one"
    safety = Safety.EXACT
    after = ("copy-pinned-async", "copy-narrow-dtype")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        places = call_sites(evidence, "Tensor.to", "Tensor.cuda")
        sizes: set[int] | None = None
        if call_sites(evidence, *_FRAMEWORKS, every_step=False):
            return  # they copy the batches, and take no other way of doing so
        if evidence.record is not None:
            loaders = [each for each in evidence.record.loaders if each.trains and not framework_of(each.owner)]
            sizes = {tensor.bytes for each in loaders for tensor in each.tensors if tensor.pinned and tensor.bytes}
            if not any(each.trains for each in evidence.record.loaders):  # batches of the script's own
                few = [each for each in places if each.calls_per_step <= _MOST_OF_A_BATCH]
                sizes = {size for each in few if each.details.get("pinned") and (size := each.details.get("bytes"))}
            places = tuple(each for each in places if each.details.get("bytes") in sizes and _asynchronous(each))
            if not places:
                return
        rows = _in_line(evidence, sizes)
        if not len(rows):
            return
        copies, steps = evidence.trace.copies, len(evidence.steps)
        length = (copies.end - copies.start)[rows]
        copied_s = float(length.sum(dtype=np.float64)) / 1e9 / steps
        hidden = evidence.device.kernels.within(copies.start[rows], copies.end[rows])
        exposed_s = copied_s - float(hidden.sum(dtype=np.float64)) / 1e9 / steps
        estimate = evidence.what_if(Change(remove_copies=rows))
        # A copy that takes longer than all the rest of the step cannot hide behind it.
        if exposed_s < _EXPOSED * copied_s or copied_s > estimate.low:
            return
        gain = Gain.of(estimate)
        if not gain.worth_it:
            return
        size = float(copies.bytes[rows].sum(dtype=np.float64)) / steps
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step copies {size / 1e6:.1f} MB to the GPU in {copied_s * 1e3:.2f} ms"
            + (f", at {', '.join(dict.fromkeys(at(each.site) for each in places))}" if places else "")
            + f"; for {exposed_s * 1e3:.2f} ms of that no kernel runs.",
            gain=gain,
            evidence={
                "h2d_bytes": size,
                "h2d_s": copied_s,
                "h2d_exposed_s": exposed_s,
                "step_s": evidence.step_s,
            },
            site=places[0].site if places else None,
            parameters={"copies": sites(places)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        where = ", ".join(dict.fromkeys(at(site) for site in site_list(finding, "copies"))) or "your script"
        return Advice(
            f"Copy the next batch on a stream of its own, instead of at {where}: stream = torch.cuda.Stream(); "
            "with torch.cuda.stream(stream): take the next batch and copy it with non_blocking=True; "
            "before a batch is used, torch.cuda.current_stream().wait_stream(stream), and of each of its tensors "
            "x.record_stream(torch.cuda.current_stream()). torchtnt.utils.data.CudaDataPrefetcher(loader, device) does "
            "that around a loader.",
            "the loop has to be turned around: the next batch is fetched before this one is used",
        )

    EXAMPLES = (
        Example(
            before="for x, y in loader:\n    x = x.to(device, non_blocking=True)  # <- copies\n    step(x, y)\n",
            after="",
            advice="train.py:2: stream = torch.cuda.Stream()",
        ),
    )
    LEAVES_ALONE = (Example("x = x.cuda(non_blocking=True)  # <- copies\n", ""),)


def _asynchronous(place: CallSite) -> bool:
    ups = place.details.get("from_device") == "cpu" and place.details.get("to_device") == "cuda"
    return ups and bool(place.details.get("non_blocking"))


def _in_line(evidence: Evidence, sizes: set[int] | None) -> Ints:
    """Copies of the batch from pinned memory, without blocking, on a stream that computes.

    They are those of the loader's `sizes`; of a bare trace those that each step launches before its first kernel.
    """
    trace, steps = evidence.trace, evidence.steps
    copies, kernels = trace.copies, trace.kernels
    _, _, blocking = blocking_time(evidence.device)
    step = assign(steps, copies.start)
    chosen = (step >= 0) & names_like(trace, copies.kind, "HtoD".__eq__)
    chosen &= ~copies.pageable & ~blocking & np.isin(copies.stream, np.unique(kernels.stream))
    if sizes is not None:
        return np.flatnonzero(chosen & np.isin(copies.bytes, list(sizes)))
    launch = evidence.device.items_launch
    of_kernels, of_copies = launch[: len(kernels)], launch[len(kernels) :]
    chosen &= of_copies >= 0
    first = np.full(len(steps), np.iinfo(np.int64).max)
    started = trace.runtime.start[of_kernels[of_kernels >= 0]]
    within = assign(steps, started)
    np.minimum.at(first, within[within >= 0], started[within >= 0])
    rows = np.flatnonzero(chosen)
    called = trace.runtime.start[of_copies[rows]]
    at_step = assign(steps, called)
    return rows[(at_step >= 0) & (called < first[at_step])]
