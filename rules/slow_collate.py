"""The script's own collate function takes most of the time in which a batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.evidence.asleep import ASLEEP_AFTER_S, asleep_s
from advisor.evidence.loading.felt import felt
from advisor.evidence.loading.fetching import is_users, share, without
from advisor.rule import WIDEST, Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import FetchPart, Loader

_MOST = 0.5  # share of the fetch from which on the batches are mostly collated
# Per sample: from so many calls of torch, or lines of Python, on a collate function goes through the numbers one by
# one. Padding and stacking takes about one call, and a few lines, per sample and tensor.
_CALLS, _LINES = 12, 60
_SMALL_S = 100e-6  # per call: what takes longer computes more than it costs to be called
# Of a batch of sequences: 29 ms of CPU when it is filled in number by number, 1.4 ms when it is padded from whole
# sequences (one thread), 20 times less.
_LOOP = 20.0
# What puts tensors and arrays together as they are, and reads lists; and how many numbers of them are worth a word.
_TORCHS, _OF_ARRAYS = "default_collate", ("default_data_collator", "torch_default_data_collator", "DefaultDataCollator")
_LEAST_LISTED = 64
# An array takes as long as so many numbers in lists: of 64, 128 and 12,288 numbers a sample arrays took 0.25, 0.14 to
# 0.16 and 0.003 to 0.008 of what lists take torch's collate function, and 0.06, 0.03 and 0.003 transformers' (torch
# 2.14, transformers 5.24, one thread and two).
_AN_ARRAY = 20
_LISTS_BASIS = "samples in arrays against the same numbers in lists: as long as 20 of them (measured)"
_BASIS = "batches of sequences padded in blocks: 20 times less CPU (measured)"


class SlowCollate(Rule):
    """A collate function of the script's own puts batches together number by number, and the step waits for it.

    Writing one element of a tensor from Python (``batch[i, j] = x``) takes some µs, a thousand times as long as copying
    it in a block. ``torch.nn.utils.rnn.pad_sequence`` pads whole sequences, ``torch.stack`` and ``torch.tensor`` of a
    list take all samples at once, and what depends on positions can be computed for all of them with ``torch.arange``
    and a mask. Reported where the collate function was seen to take at least half of making a batch, in many calls for
    each sample; or where torch's or transformers' own gets samples whose numbers are in lists, as ``tolist()`` and JSON
    give them: it reads each by itself, where arrays are copied.

    When not: workers hide it, and have cores of their own (then nothing is reported); it calls a tokenizer that is
    written in Python, which belongs before the training; its calls are few and long, as those of an augmentation are
    (not reported).

    Source: PyTorch docs, ``torch.nn.utils.rnn.pad_sequence``; torch.utils.data, "Working with collate_fn".
    """

    id = "slow-collate"
    title = "Put batches together with whole tensors"
    safety = Safety.EXACT
    after = ("loader-workers",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not facts.fetch_s or not (how := felt(evidence, facts)):
                continue
            part = _collate(loader)
            if part is None:
                yield from _of_lists(evidence, facts, how)
                continue
            taken = share(loader, part)
            gain = _gain(evidence, facts, taken * (1.0 - 1.0 / _LOOP), _BASIS)
            if not gain.worth_it:
                continue
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{part.name} ({at(part.site)}) takes {taken:.0%} of making a batch: "
                f"{loader.collate_lines or 0:.0f} lines of Python and {loader.collate_calls or 0:.0f} calls of torch "
                f"for each sample. {how}",
                gain=gain,
                evidence={
                    "share_of_fetch": taken,
                    "fetch_s": facts.fetch_s,
                    "fetch_cpu_s": facts.fetch_cpu_s,
                    "data_wait_s": facts.wait_s,
                    "torch_calls_per_sample": loader.collate_calls,
                    "lines_per_sample": loader.collate_lines,
                    "workers": facts.workers,
                    "step_s": evidence.step_s,
                },
                site=part.site,  # what has to be written anew
                parameters={"collate": part.name},
            )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        name = finding.parameters.get("collate") or "the collate function"
        if finding.parameters.get("listed"):
            return Advice(
                f"Keep the numbers of the samples ({at(finding.site)}) as arrays: np.asarray(numbers, "
                "dtype=np.float32), once, where the dataset is made, or the tensor itself."
                + (" A batch has one tensor then, not one for each place in the list." if name == _TORCHS else ""),
                "where the lists come from only the author can tell",
            )
        return Advice(
            f"Have {name} ({at(finding.site)}) put whole samples into the batch instead of single numbers: "
            "torch.nn.utils.rnn.pad_sequence([torch.tensor(sample) ...], batch_first=True) pads them, torch.stack or "
            "torch.tensor of a list takes one value of each, and torch.arange with a mask gives what depends on "
            "positions.",
            "what the loop writes only its author can say in other words",
        )

    EXAMPLES = (
        Example(
            before="def to_batch(samples):\n    return pad(samples)  # <-\n",
            after="",
            parameters={"collate": "to_batch"},
            advice="put whole samples",
        ),
        Example(
            before="def __getitem__(self, i):  # <-\n    return {'signal': self.rows[i]['signal'], 'label': 1}\n",
            after="",
            parameters={"collate": "default_data_collator", "listed": True},
            advice="np.asarray(numbers",
        ),
    )
    LEAVES_ALONE = (Example("loader = DataLoader(sessions, 64, collate_fn=pad)  # <-\n", "", {"collate": "pad"}),)


def _of_lists(evidence: Evidence, facts: LoaderFacts, how: str) -> Iterator[Finding]:
    """Samples with numbers in lists, for a collate function that takes any; `how` the step feels it, in words."""
    loader = facts.record
    part = next((part for part in loader.parts if part.kind == "collate"), None) if loader is not None else None
    if loader is None or part is None or part.name not in (_TORCHS, *_OF_ARRAYS) or share(loader, part) < _MOST:
        return
    if loader.listed < _LEAST_LISTED or loader.source_site is None:
        return
    taken = share(loader, part)
    gain = _gain(evidence, facts, taken * (1.0 - _AN_ARRAY / loader.listed), _LISTS_BASIS)
    if not gain.worth_it:
        return
    yield Finding(
        rule=SlowCollate.id,
        title="Keep samples as arrays, not as lists",
        summary=f"{loader.source.rpartition('.')[2]} gives {loader.listed:,} numbers of each sample in lists, which "
        f"{part.name} reads one by one: {taken:.0%} of making a batch. {how}",
        gain=gain,
        evidence={
            "share_of_fetch": taken,
            "numbers_per_sample": loader.listed,
            "fetch_s": facts.fetch_s,
            "data_wait_s": facts.wait_s,
            "workers": facts.workers,
            "step_s": evidence.step_s,
        },
        site=loader.source_site,
        parameters={"collate": part.name, "listed": True},
    )


def _gain(evidence: Evidence, facts: LoaderFacts, saved: float, basis: str) -> Gain:
    """The step without the share `saved` of making a batch, and what operators take longer after it."""
    change = without(facts, saved)
    gain = Gain.prior(evidence.what_if(change), basis)
    if facts.workers or saved * (facts.fetch_s or 0.0) < ASLEEP_AFTER_S:
        return gain
    longer = asleep_s(evidence, (evidence.step_s or 0.0) - saved * (facts.fetch_s or 0.0))
    likely, high = (evidence.what_if(replace(change, remove_host_s=more)).speedup[1] for more in longer)
    likely, high = max(likely, gain.likely), max(high, gain.high)
    return Gain(max(gain.low, high / WIDEST), likely, high, basis)


def _collate(loader: Loader) -> FetchPart | None:
    """The user's collate function, where it takes most of a fetch, in many small calls."""
    part = next((part for part in loader.parts if part.kind == "collate"), None)
    if part is None or not is_users(part.site.file) or share(loader, part) < _MOST:
        return None
    calls, lines = loader.collate_calls or 0.0, loader.collate_lines or 0.0
    if calls < _CALLS and lines < _LINES:
        return None
    spent = share(loader, part) * (loader.fetch_cpu_s or 0.0) / (loader.batch_size or 1)
    return part if spent <= _SMALL_S * max(calls, lines) else None
