"""Batches of sequences of different lengths, each padded to the longest of its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.scopes import string_value
from advisor.errors import AdvisorError
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Rule,
    Safety,
    forward_sites,
    framework_of,
    site_list,
    where,
)
from advisor.shared.fewer_columns import LEAST_PADDED, columns_spared
from advisor.shared.frameworks import configured, construction, takes

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader, Model

# Of the token ids, or of the values. Where the order of the samples is part of the training it has to be worth more.
_LEAST_UNEVEN, _LEAST_IN_TRAINING = 0.3, 0.4
_LEAST_GAIN = 1.2
# Of the columns, on average free in all rows of a batch: with fewer the longest texts may be in every one.
_LEAST_FREE = 0.03
# Batches of like length that are drawn by chance from an epoch of fewer are not like enough, or always the same.
_LEAST_BATCHES = 16
# Of the padding's work, what stays. Of 6000 log-normal lengths in batches of 16, 71 % of the ids are padding; sorted
# within groups of 50 batches 8 % of those that are left, which is 3 % of what it was.
_LEFT = 0.05
_LAYERS = ("Embedding", "EmbeddingBag")  # what makes whole numbers token ids
# Operators of models that compute on no padding: packed sequences, nested tensors, attention of various lengths.
_UNPADDED = ("_pack_padded_sequence", "_nested_tensor_from_mask", "varlen")
# Of attention, whose work is the square of each batch's own length, the power of the mean length that is left of it:
# of those 6000, the mean of the squares is 1.9 times the square of the mean.
_ATTENTION = 1.5
_BASIS = "prior: the work of what is padding goes, but for a twentieth of it"
_SORTED = (
    "Sort by length before batches are made of them, and put the results back in their places: "
    "order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True), batches of order, "
    "results[order[first:last]] = outputs."
)
_GROUPED = (
    "Make batches of samples of like length: a batch_sampler that shuffles, sorts groups of about 50 batches by "
    "length, and gives the batches in another random order (transformers' LengthGroupedSampler does the first two)."
)
# What transformers' arguments are called: by version.
_STRATEGY, _GROUP = "train_sampling_strategy", "group_by_length"
_IDS = "input_ids"  # what Trainer takes the lengths from
_NO_IDS = f"it takes the lengths from {_IDS!r}, which the samples may not have"
_ITEM = "__getitem__"
_ORDERED = ("predict", "do_predict", "prediction_loop", "evaluation_loop", "prediction_step")


class UnevenLengths(Rule):
    """Short sequences are padded to the longest of their batch: much of what is computed is padding.

    A batch takes as long as its longest sequence in all rows. Where lengths differ much, batches made in the order of
    the data, or by chance, each hold a long one. Made of sequences of like length they hold next to no padding: in
    inference sorted by length, longest first; in training by chance among neighbours in length, the batches in random
    order. Reported where the ids that the model was called with (or its recordings, spectrograms, series) were seen
    to end in padding, in batches that are padded each to a length of its own, or all to that of the longest text.

    When not: requests that come one by one; a model that packs its sequences, or a compiled one that wants few shapes;
    training where the length goes with what is learned, for then batches are no longer drawn alike (the loss is
    noisier, and what is learned another by chance).

    Source: Hugging Face transformers, ``LengthGroupedSampler``; Ott et al. 2019, "fairseq", section 3 (batches of
    similar lengths). The gain is a prior.
    """

    id = "uneven-lengths"
    title = "Batch sequences of like length together"
    safety = Safety.BEHAVIOUR
    after = ("batch-size", "padding")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.compiled:
            return
        if any(part in row.name for row in evidence.operators for part in _UNPADDED):
            return
        called = [model for model in record.models if model.calls]
        if len(called) != 1 or 2 * called[0].grown > called[0].calls:
            return  # a text that is written; batches are one column wider than others by chance
        (model,) = called
        looked_up, whole = any(layer in model.layers for layer in _LAYERS), _padded_to_one_width(model)
        texts = looked_up and (model.uneven is not None or whole > 0.0)
        share = (model.uneven or whole if texts else model.filled) or 0.0
        if share < (_LEAST_IN_TRAINING if evidence.trains else _LEAST_UNEVEN):
            return
        loader = evidence.feeding
        if loader is not None and not _can_be_sorted(loader):
            return
        gain = columns_spared(evidence, share * (1.0 - _LEFT), _BASIS, _ATTENTION)
        if gain.likely < _LEAST_GAIN:
            return
        forwards = forward_sites(evidence)
        made = loader.site if loader is not None else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the {'token ids' if texts else 'values'} that {model.cls} is called with fill "
            f"shorter sequences up to {_one_width(model) if whole else 'the longest of their batch'}.",
            gain=gain,
            evidence={"padding_share": share, "step_s": evidence.step_s},
            site=made or (forwards[0].site if forwards else None),
            parameters={
                "trains": evidence.trains,
                "framework": framework_of(loader.owner) if loader is not None else "",
                "texts": texts,
                "whole": bool(whole),
                "dataset": loader.dataset_file if loader is not None else "",
                **construction(evidence),
            },
            safety=None if evidence.trains else Safety.NUMERIC,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("whole"):
            grouped = _GROUPED if finding.parameters.get("trains") else _SORTED
            return Advice(
                f"Pad each batch to its own longest sequence, where the batch is made. {grouped}",
                "where they are padded, and whether samples may be drawn by their length, only its author can tell",
            )
        if not finding.parameters.get("trains"):
            return Advice(_SORTED, "where the results go only its author can tell")
        if finding.parameters.get("framework") != "transformers" or finding.parameters.get("texts") is False:
            return Advice(
                f"{_GROUPED[:-1]}, {where(finding.site)}.",
                "whether samples may be drawn by their length only its author can tell",
            )
        old = not takes(finding, _STRATEGY) and takes(finding, _GROUP)
        settings = {_GROUP: "True"} if old else {_STRATEGY: f'"{_GROUP}"'}
        told = ", ".join(f"{name}={code}" for name, code in settings.items())
        text = f"Pass TrainingArguments({told}); evaluations go through their samples in such an order, too."
        if why := _not_grouped(Drafts(sources), finding):
            return Advice(text, why)
        return configured(finding, sources, "transformers", settings, text, "transformers makes the loader")

    EXAMPLES = (
        Example(
            before="for batch in DataLoader(texts, batch_size=16, collate_fn=collate):  # <-\n    embed(batch)\n",
            after="",
            advice="Sort by length",
        ),
        Example(
            before="loader = DataLoader(pairs, batch_size=32, shuffle=True, collate_fn=collate)  # <-\n",
            after="",
            parameters={"trains": True},
            advice="LengthGroupedSampler",
        ),
        Example(
            before='ids = tokenizer(texts, padding="longest")["input_ids"]\nloader = DataLoader(ids, 16)  # <-\n',
            after="",
            parameters={"trains": True, "whole": True},
            advice="Pad each batch to its own longest sequence",
        ),
        Example(  # what Trainer would take the lengths from is not known
            before='args = TrainingArguments("out", per_device_train_batch_size=8)  # <- config\n',
            after="",
            parameters={"trains": True, "framework": "transformers"},
            advice="train_sampling_strategy",
        ),
    )
    LEAVES_ALONE = (Example("loader = DataLoader(pairs, batch_sampler=Buckets(pairs))  # <-\n", "", {"trains": True}),)


def _padded_to_one_width(model: Model) -> float:
    """The share of a model's token ids that is padding, where all batches have the width of the longest text of all.

    0 where that leaves columns free in every batch that are worth a word of their own, or none: then nothing says that
    batches could be narrower.
    """
    if model.short is None or model.padded is None or not _LEAST_FREE <= model.padded < LEAST_PADDED:
        return 0.0
    return model.padded + model.short


def _one_width(model: Model) -> str:
    return f"the {model.width} columns that every batch has" if model.width else "the width that every batch has"


def _not_grouped(drafts: Drafts, finding: Finding) -> str:
    """Why Trainer could not group the samples by length, or what is made of them would be in another order; or "".

    It takes the lengths from each sample's ``input_ids``, and has evaluations and predictions in that order, too.
    """
    paths = {str(finding.parameters.get("dataset", "")), *drafts.sources.modules}
    paths |= {site.file for site in site_list(finding, "config")}
    datasets = 0
    for path in sorted(filter(drafts.sources.editable, filter(None, paths))):
        try:
            if not any(word in drafts.sources.text(path) for word in (_ITEM, *_ORDERED)):
                continue
            draft = drafts[path]
        except AdvisorError:  # what cannot be read says nothing
            continue
        if any(each.value in _ORDERED for each in draft.nodes(cst.Name)):
            return "the script predicts with it, and what is predicted would be in another order than the samples"
        items = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == _ITEM]
        if not all(_gives_ids(draft, each) for each in items):
            return _NO_IDS
        datasets += len(items)
    return "" if datasets else _NO_IDS


def _gives_ids(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether a dataset's samples are dicts, written out there, that have token ids."""
    keys = [each.key for each in draft.nodes(cst.DictElement, function)]
    return any(string_value(each) == _IDS for each in keys)


def _can_be_sorted(loader: Loader) -> bool:
    """Whether its samples are known before they are drawn, and make enough batches."""
    if loader.iterable or not loader.batch_size or loader.batch_size < 2:
        return False
    return loader.dataset_length is None or loader.dataset_length >= _LEAST_BATCHES * loader.batch_size
