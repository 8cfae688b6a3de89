"""Each epoch computes again what depends on the samples alone, and on nothing that is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.loading.epochs import (
    comes_round,
    epochs_of,
    may_thaw,
    may_thaw_anywhere,
    rounds_of,
    stays_the_same,
)
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.15
_EPOCHS = 10.0  # of a training of which that is not known
_LEAST_ROUNDS = 2.0  # of one that draws its batches itself
_MOST_OF_MEMORY = 0.5  # of what is free: the samples are there, too
_MOST_BYTES = 4 << 30  # where it is not known how much is free
_BYTES_PER_S = 1e9  # at which rows are taken out of memory, and stacked: 0.8e9 of 80 kB each, on 2 cores


class FrozenFeatures(Rule):
    """Each epoch computes the same features of the same samples again: what gives them is frozen.

    A pretrained network whose last layer alone is trained, a text encoder, a teacher, the spectrogram of a recording:
    what they give of a sample is the same in each epoch when no weight of it is trained, nothing in it is drawn at
    random, and the sample is the same. Computed once per sample, before the training, and kept beside the labels, it
    costs one pass; from the second epoch on the steps are without it. Reported where a run has seen it: which calls of
    a forward are functions of what a loader delivered, or of rows of a tensor that the script keeps, and of weights
    that stay as they are, in three steps; and that no generator of random numbers moved while a loader made batches.

    When not: the samples are augmented at random, or are to be later; the frozen part will be trained from some epoch
    on; there is one epoch; what is to be kept does not fit into memory (it can be kept in a file, then). On a GPU it is
    not reported: there calls take no time of their own.

    Source: PyTorch, "Transfer Learning for Computer Vision Tutorial", "ConvNet as fixed feature extractor"; Keras,
    "Transfer learning & fine-tuning", which keeps the features ("run the new data through it once"). The gain is the
    time that these calls took, undisturbed, in all epochs but one: of as many as the script has, or of ten.
    """

    id = "frozen-features"
    title = "Compute once per sample what no training changes"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.frozen or evidence.device_is_gpu or not evidence.step_s or not evidence.trains:
            return
        if record.step_kind != "optimizer":
            return
        loaders = [
            record.loaders[each] for line in record.frozen for each in line.loaders if each < len(record.loaders)
        ]
        pools = {each: line.rows for line in record.frozen for each in line.pools}
        if not (loaders or pools) or not all(
            comes_round(evidence, each) and stays_the_same(evidence, each) and not may_thaw(evidence, each)
            for each in loaders
        ):
            return
        rounds = [rounds_of(evidence, samples, batch) for samples, batch in pools.items()]
        if pools and (may_thaw_anywhere(evidence) or any(each is not None and each < _LEAST_ROUNDS for each in rounds)):
            return
        samples = max(*(each.dataset_length or 0 for each in loaders), *pools, 0)
        size = samples * sum(each.sample_bytes for each in record.frozen)
        free = record.memory.host_available
        if size > (_MOST_BYTES if free is None else _MOST_OF_MEMORY * free):
            return
        # Their share of the three steps in which they were seen is too small, for others watched these, too; what they
        # took then may be too much, for the machine may have been busy.
        least = min(sum(each.share for each in record.frozen), 1.0) * evidence.step_s
        most = min(sum(each.seconds for each in record.frozen), evidence.step_s)
        seconds = (least + max(least, most)) / 2
        batch = max((each.batch_size or 1 for each in loaders), default=max(pools.values(), default=1))
        rows = record.timing.samples_per_step or batch
        saved = seconds - rows * sum(each.sample_bytes for each in record.frozen) / _BYTES_PER_S
        known = [each for each in (*(epochs_of(evidence, each) for each in loaders), *rounds) if each is not None]
        epochs = max(min(known, default=_EPOCHS), 1.0)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=saved * (1 - 1 / epochs))))
        if gain.likely < _LEAST_GAIN:
            return
        longest = record.frozen[0]
        what = "the model that is called" if longest.whole else "a part of the model"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{seconds / evidence.step_s:.0%} of the step computes what depends on the samples alone, most of "
            f"it {what} at {at(longest.site)}: no weight of it is trained, the samples are the same in each epoch, and "
            "so is what it gives.",
            gain=gain,
            evidence={
                "frozen_s": seconds,
                "calls_per_step": sum(each.calls for each in record.frozen),
                "epochs": epochs if known else None,
                "samples": samples,
                "kept_bytes": size,
                "step_s": evidence.step_s,
            },
            site=longest.site,
            parameters={
                "lines": tuple(each.site for each in record.frozen),
                "samples": samples,
                "bytes": float(size),
                "whole": longest.whole,
                "drawn": bool(pools),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        lines, samples, size = (finding.parameters.get(each) for each in ("lines", "samples", "bytes"))
        others = {at(each) for each in lines} - {at(finding.site)} if isinstance(lines, tuple) else set()
        also = f" (and at {', '.join(sorted(others))})" if others else ""
        takes = f", about {_amount(size)} for {samples:,} samples," if isinstance(size, float) and size else ""
        one_pass, kept = "one pass over the dataset in its order", "in a TensorDataset beside the labels"
        if finding.parameters.get("drawn"):
            one_pass = "one pass, in batches, over all rows that the batches are drawn from"
            kept = "in a tensor whose rows are drawn beside those of the labels"
        return Advice(
            f"Compute what is computed {where(finding.site)}{also} once for each sample, before the training: in "
            f"{one_pass}, in eval() and under torch.no_grad(). Keep what it gives"
            f"{takes} {kept}, and train the rest on that. The pass takes as long as this "
            "part of one epoch does now: the steps are faster from the second epoch on.",
            "that the samples and this part stay as they are for all of the training only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for x, y in loader:\n    loss = criterion(head(body(x)), y)  # <- body(x)\n",
            after="",
            parameters={"samples": 5000, "bytes": 10_240_000.0},
            advice="about 10 MB for 5,000 samples, in a TensorDataset",
        ),
        Example(
            before="for x, y in loader:\n    with torch.no_grad():\n        wanted = teacher(x)  # <- teacher(x)\n",
            after="",
            parameters={"whole": True},
            advice="from the second epoch on",
        ),
        Example(
            before="for rows in order.split(32):\n    loss = loss_of(head(body(x[rows])), y[rows])  # <- body(x\n",
            after="",
            parameters={"drawn": True},
            advice="over all rows that the batches are drawn from",
        ),
    )
    LEAVES_ALONE = (Example("for x, y in loader:\n    loss = criterion(net(x), y)  # <-\n", ""),)


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):,.{0 if size >= 1e6 else 1}f} MB"
