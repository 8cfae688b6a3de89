"""Batches of many small tensors that workers hand over one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.rule import WIDEST, Advice, Example, Finding, Gain, Rule, Safety, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_TENSORS = 32  # of a batch: fewer take a few ms to hand over
_SMALL = 1 << 16  # bytes of one, on average: larger ones are long to copy, however many there are
_LEAST_WAIT = 0.1  # of the step
_EXPLAINED = 0.5  # of the wait: where making the batches takes that long, it is what the step waits for
# How much of the rest of the wait goes, best, likely, worst. Letting the segments go takes time in the step as well,
# and threads that slept have to wake: of two steps of 61 and 49 ms that waited 22 and 32 for it 29 and 39 went.
_GOES = (1.35, 1.15, 0.9)
_LEAST_LEFT = 0.1  # of the step
_BASIS = "prior: the wait that making the batches does not explain, 0.9 to 1.35 times"


class ManyTensors(Rule):
    """The loader's workers hand over batches of many small tensors, each of which takes a segment of memory of its own.

    What a worker makes goes to the training process through shared memory: for each tensor the worker makes a segment,
    sends its file descriptor, and the training process asks for it over a socket, maps it, and lets it go again. That
    takes 0.1 to 0.4 ms, however small the tensor is, half of it in the training process, between two steps. A batch
    that is a list of graphs, or of samples of several tensors each, has a hundred of them. Joined in the worker, by the
    collate function, it has a few. Reported where batches of 32 small tensors and more come from workers, and the step
    waits for them much longer than making them takes.

    When not: the samples are large, or have to stay apart in the step.

    Source: PyTorch docs, "Multiprocessing package", "Sharing strategies" (``file_descriptor``), and
    ``torch.utils.data``, ``collate_fn``. The gain is the part of the wait that making the batches does not explain; a
    list of 32 graphs of four tensors, for which a step of 61 ms waited 22, became one graph: 1.88 times as fast.
    """

    id = "many-tensors"
    title = "Hand over batches in few tensors"
    safety = Safety.EXACT
    after = ("loader-workers",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not facts.workers or facts.fetch_s is None or facts.wait_share < _LEAST_WAIT:
                continue
            if loader.batch_tensors < _LEAST_TENSORS or not loader.tensors:
                continue
            size = sum(each.bytes for each in loader.tensors) / len(loader.tensors)
            making_s = facts.fetch_s / facts.workers
            if size > _SMALL or making_s > _EXPLAINED * facts.wait_s:
                continue
            step_s = evidence.step_s or facts.wait_s / facts.wait_share
            waits = ((facts.wait_s - making_s) * goes for goes in _GOES)
            best, likely, worst = (step_s / max(step_s - each, _LEAST_LEFT * step_s) for each in waits)
            gain = Gain(max(worst, best / WIDEST), likely, best, _BASIS)
            if not gain.worth_it:
                continue
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"Each batch comes from a worker as {loader.batch_tensors:,} tensors of {size:,.0f} bytes on "
                f"average, each handed over by itself: the step waits {facts.wait_s * 1e3:.1f} ms "
                f"({facts.wait_share:.0%}) for what {facts.workers} workers make in {making_s * 1e3:.1f} ms.",
                gain=gain,
                evidence={
                    "tensors": loader.batch_tensors,
                    "bytes_each": size,
                    "data_wait_s": facts.wait_s,
                    "fetch_s": facts.fetch_s,
                    "workers": facts.workers,
                    "step_s": evidence.step_s,
                },
                site=loader.site,
            )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Give the loader made {where(finding.site)} a collate_fn that joins the samples in the worker: "
            "torch.stack() of what has one shape, torch.cat() with the lengths beside it of what has not, graphs with "
            "their numbers of nodes added to the indices of edges (torch_geometric.data.Batch.from_data_list). What "
            "joins them after the loader now can be it.",
            "how the samples go together only their author can tell",
        )

    EXAMPLES = (
        Example(
            before="loader = DataLoader(graphs, 32, num_workers=2, collate_fn=list)  # <-\n",
            after="",
            advice="a collate_fn that joins the samples in the worker",
        ),
    )
    LEAVES_ALONE = (Example("loader = DataLoader(graphs, 32, num_workers=2, collate_fn=join)  # <-\n", ""),)
