"""Sequences are padded farther than the longest of their batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.calls import argument, has_starred
from advisor.edit.columns import over_all_columns
from advisor.edit.loading.padded_by_hand import padded_by_hand
from advisor.edit.locate import call_at
from advisor.edit.names import full_name
from advisor.edit.origins.values import give
from advisor.edit.scopes import is_literal, literal_equals, string_value
from advisor.errors import AdvisorError
from advisor.fixes import given_fix
from advisor.harness.layout import Site
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Rule,
    Safety,
    at,
    file_list,
    forward_sites,
    model_files,
    site_list,
    sites,
    where,
)
from advisor.shared.fewer_columns import LEAST_PADDED, columns_spared, on_columns

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.1
_LAYERS = ("Embedding", "EmbeddingBag")  # what makes whole numbers token ids
_PACKED = "aten::_pack_padded_sequence"
_FULL = "max_length"
# What lengths are rounded up to: Tensor Cores want multiples of 8 in 16 bits (NVIDIA, "Matrix Multiplication
# Background"), and no more.
_MULTIPLE, _ALIGNED, _COLLATOR = "pad_to_multiple_of", 8, "DataCollator"
_ROUNDED = "Round the length of a batch up to a multiple of 8, not of so many: pad_to_multiple_of=8."
_TOKENIZER = "tok"
_COLLATES = ("collate_fn", "data_collator")
_JOINS = ("cat", "concat", "concatenate", "stack", "vstack", "hstack")
_ONE_ROW_EACH = "ForSequenceClassification"  # what such a model says of a text does not grow with it
_BY_HAND = (
    "Pad each batch to its own longest sequence: torch.nn.utils.rnn.pad_sequence in the loader's collate_fn, or leave "
    "the columns that are padding in all rows before the model is called."
)
_BASIS = "prior: the work of the columns that are padding in every row goes"


class Padding(Rule):
    """Batches of token ids are padded to a fixed length, farther than the longest sequence in them.

    Columns that are padding in every row are computed like all others, and masked: embeddings, projections and
    feed-forward layers do their share for nothing, attention the square of it. Padded to the longest of its batch
    (``padding="longest"``, or ``DataCollatorWithPadding``), a batch gives the same for what is not padding. Reported
    where the ids that the model was called with were seen to have such columns, batch after batch.

    When not: a compiled model, or CUDA graphs, that want one shape; a model that reads a fixed number of positions, or
    takes a mean over all of them without the mask: that one gives something else then (the text encoders of diffusion
    models read 77); what the model says of each token is joined for all batches, which then differ in width.

    Source: Hugging Face transformers, "Padding and truncation": dynamic padding; the columns were counted in the run.
    The gain is a prior.
    """

    id = "padding"
    title = "Pad batches to their own longest sequence"
    safety = Safety.NUMERIC
    after = ("batch-size",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.compiled:
            return
        if evidence.operators.row(_PACKED) is not None:
            return  # what comes after it sees no padding
        if sum(1 for model in record.models if model.calls) > 1:
            return  # the step is not this one model's
        for model in record.models:
            if model.padded is None or model.padded < LEAST_PADDED or not model.calls:
                continue
            if 2 * model.grown > model.calls:  # a text that is generated, and says one thing again and again
                continue
            if not any(layer in model.layers for layer in _LAYERS):
                continue
            gain = columns_spared(evidence, model.padded, _BASIS, share=on_columns(evidence, model))
            if gain.likely < _LEAST_GAIN:
                continue
            longest = round(model.width * (1.0 - model.padded))
            files = _files(evidence)
            calls = sites(forward_sites(evidence))
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{model.cls} is called with {model.width} columns of token ids, of which the longest sequence "
                f"of a batch fills {longest} on average: {model.padded:.0%} of the columns are padding in every row.",
                gain=gain,
                evidence={
                    "columns": model.width,
                    "longest": longest,
                    "padded_share": model.padded,
                    "step_s": evidence.step_s,
                },
                site=next(_places(files, model.width), calls[0] if calls else None),
                parameters={
                    "files": files,
                    "library": not model.own,
                    "model": model.cls,
                    "calls": calls,
                    "width": model.width,
                },
                # The script's own may read its last column, a mean over all, or all of them in one product.
                safety=Safety.BEHAVIOUR if model.own else None,
            )
            return

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = (
            'Pad each batch to its own longest sequence: padding="longest" where the tokenizer gets a batch, '
            "DataCollatorWithPadding where it gets one text."
        )
        drafts = Drafts(sources)
        site, columns = finding.site, finding.parameters.get("width")
        width = columns if isinstance(columns, int) else 0
        calls = [
            (drafts[path], call)
            for path in dict.fromkeys((*file_list(finding, "files"), *((site.file,) if site is not None else ())))
            if sources.has(path)
            for call in _padded_calls(drafts[path], width)
        ]
        parameter, code = "padding", '"longest"'
        seen: Sequence[object] = [_FULL]
        rounds = len(calls) == 1 and not _fixes(calls[0][1])
        if rounds:
            parameter, code, text, seen = _MULTIPLE, str(_ALIGNED), _ROUNDED, _multiples(width)
        if not calls:
            return Advice(_BY_HAND, _padded_by_hand(finding, drafts) or "what pads was not found")
        if len(calls) != 1:
            places = ", ".join(at(_site(draft, call)) for draft, call in calls)
            return Advice(text, f"it is done at {places}")
        ((draft, call),) = calls
        if not (_collates(draft, call) or _prepares(draft, call) or _gets_batch(drafts, draft, call, finding)):
            return Advice(text, f"{where(_site(draft, call))} one text is padded at a time, or may be")
        if finding.parameters.get("library") is False:
            return Advice(text, "whether the model counts on that many columns only its author can tell")
        if not rounds and (by_hand := next(padded_by_hand(draft), None)) is not None:
            return Advice(text, f"something is padded by hand, too, {where(_site(draft, by_hand))}")
        forwards = site_list(finding, "calls")
        files = {draft.source.path, *(site.file for site in forwards)}
        if (unmasked := next(_without_mask(drafts, forwards), None)) is not None:
            return Advice(
                text, f"the model is not told what is padding {where(unmasked)}, and says something else without it"
            )
        scores = str(finding.parameters.get("model", "")).endswith(_ONE_ROW_EACH)
        if not scores and any(sources.has(path) and _joins(drafts[path]) for path in files):
            return Advice(
                text, "what the model says of several batches is put together, and may have to be of one width"
            )
        reads = (over_all_columns(drafts[path], forwards) for path in files if sources.has(path) and not scores)
        if any(each is not None for each in reads):
            return Advice(text, "what the model says of all columns is read, padding among them, without its mask")
        # What lengths are rounded up to is often what they are cut to, too: that stays.
        answers = (give(drafts, draft, call, parameter, code, recorded=each, alone=rounds) for each in seen)
        answer = next((each for each in answers if each is not None), None)
        if answer is None:
            return Advice(text, "where the value comes from cannot be told from the source")
        return given_fix(drafts, draft, answer, code, text, text)

    EXAMPLES = (
        Example(
            before="""
class Scorer:
    @torch.inference_mode()
    def score(self, texts):
        enc = self.tokenizer(texts, padding="max_length", truncation=True, max_length=512, return_tensors="pt")  # <-
        return self.model(**enc).logits  # <- calls
""",
            after="""
class Scorer:
    @torch.inference_mode()
    def score(self, texts):
        enc = self.tokenizer(texts, padding="longest", truncation=True, max_length=512, return_tensors="pt")
        return self.model(**enc).logits
""",
        ),
        Example(
            before="""
from dataclasses import dataclass

@dataclass
class Config:
    padding: str = "max_length"
    longest: int = 256

config = Config()

def collate(rows):
    return tokenizer.batch_encode_plus(  # <-
        [row["text"] for row in rows], padding=config.padding, max_length=config.longest, return_tensors="pt"
    )

loader = DataLoader(rows, batch_size=8, collate_fn=collate)
""",
            after="""
from dataclasses import dataclass

@dataclass
class Config:
    padding: str = "longest"
    longest: int = 256

config = Config()

def collate(rows):
    return tokenizer.batch_encode_plus(
        [row["text"] for row in rows], padding=config.padding, max_length=config.longest, return_tensors="pt"
    )

loader = DataLoader(rows, batch_size=8, collate_fn=collate)
""",
        ),
        Example(  # how long the model's own longest is
            before="""
def embed(texts):
    enc = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")  # <-
    mask, hidden = enc["attention_mask"].unsqueeze(-1), model(**enc)[0]  # <- calls=model(**enc)
    return (hidden * mask).sum(1) / mask.sum(1)
""",
            after="""
def embed(texts):
    enc = tokenizer(texts, padding="longest", truncation=True, return_tensors="pt")
    mask, hidden = enc["attention_mask"].unsqueeze(-1), model(**enc)[0]
    return (hidden * mask).sum(1) / mask.sum(1)
""",
            parameters={"model": "BertModel"},
        ),
        Example(  # rounded up to more than any of them has
            before="""
from transformers import DataCollatorForTokenClassification

MULTIPLE = 256
collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=MULTIPLE)  # <-
trainer = Trainer(model=model, data_collator=collator)
""",
            after="""
from transformers import DataCollatorForTokenClassification

MULTIPLE = 8
collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=MULTIPLE)
trainer = Trainer(model=model, data_collator=collator)
""",
            parameters={"library": True, "width": 256},
        ),
        Example(  # the length that texts are cut to stays
            before="""
from transformers import DataCollatorWithPadding

LONGEST = 256
rows = [tok(text, truncation=True, max_length=LONGEST) for text in texts]
collator = DataCollatorWithPadding(tok, pad_to_multiple_of=LONGEST)  # <-
""",
            after="""
from transformers import DataCollatorWithPadding

LONGEST = 256
rows = [tok(text, truncation=True, max_length=LONGEST) for text in texts]
collator = DataCollatorWithPadding(tok, pad_to_multiple_of=8)
""",
            parameters={"library": True, "width": 256},
        ),
        Example(  # rows of one length are what the loader stacks
            before="""
class Reviews(Dataset):
    def __getitem__(self, i):
        enc = self.tok(self.texts[i], padding="max_length", max_length=128, return_tensors="pt")  # <-
        return {k: v[0] for k, v in enc.items()}
""",
            after="",
            advice="DataCollatorWithPadding",
        ),
    )
    LEAVES_ALONE = (
        Example(  # the model gets no mask of what is padding
            """
for texts in batches:
    enc = tok(texts, padding="max_length", max_length=77, return_tensors="pt")  # <-
    scores.append(model(enc.input_ids).logits.argmax(1))  # <- calls=model(enc.input_ids)
""",
            "",
            {"library": True, "model": "CLIPTextModel"},
        ),
        Example(  # text by text, joined before the model gets them
            """
for text in texts:
    enc = tokenizer.encode_plus(text, padding="max_length", max_length=64, return_tensors="pt")  # <-
    ids.append(enc["input_ids"])
ids = torch.cat(ids)
for batch in DataLoader(TensorDataset(ids), 32):
    out = model(batch[0])  # <- calls
""",
            "",
            {"model": "BertForSequenceClassification"},
        ),
        Example(  # its labels have as many columns
            """
def collate(rows):
    enc = tokenizer([r["words"] for r in rows], padding="max_length", max_length=128, return_tensors="pt")  # <-
    enc["labels"] = torch.tensor([r["tags"] + [-100] * (128 - len(r["tags"])) for r in rows])
    return enc

loader = DataLoader(rows, collate_fn=collate)
""",
            "",
        ),
        Example(  # a mean over the padding, too
            """
def embed(texts):
    enc = tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt")  # <-
    out = model(**enc)  # <- calls=model(**enc)
    return out.last_hidden_state.mean(dim=1)
""",
            "",
            {"model": "BertModel"},
        ),
        Example(
            """
def embed(texts):
    enc = tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt")  # <-
    return model(**enc)[0][:, -1]  # <- calls=model(**enc)
""",
            "",
            {"model": "GPT2Model"},
        ),
        Example(  # one text: the loader stacks rows of one length
            """
def encode(self, text):
    enc = self.tok(text, padding="max_length", max_length=128, return_tensors="pt")  # <-
    return enc["input_ids"][0]
""",
            "",
        ),
        Example(
            """
encs = [tok(text, padding="max_length", max_length=128, return_tensors="pt") for text in texts]  # <-
out = model(torch.cat([enc["input_ids"] for enc in encs]))  # <- calls
""",
            "",
        ),
        Example(  # one of the two is joined to the other
            """
def guided(prompt, n):
    cond = tokenizer(prompt, padding="max_length", max_length=77, return_tensors="pt")  # <-
    uncond = tokenizer([""] * n, padding="max_length", max_length=77, return_tensors="pt")
    return torch.cat([encoder(uncond.input_ids)[0], encoder(cond.input_ids)[0]])  # <- calls
""",
            "",
        ),
        Example(  # of each token
            """
def features(texts):
    out = []
    for batch in batches(texts):
        enc = tok(batch, padding="max_length", max_length=128, return_tensors="pt")  # <-
        out.append(model(**enc).last_hidden_state)  # <- calls
    return torch.cat(out)
""",
            "",
            {"model": "BertModel"},
        ),
        Example(
            """
def collate(rows):
    return extractor([row["audio"] for row in rows], padding="max_length", max_length=480000, return_tensors="pt")  # <-

loader = DataLoader(rows, collate_fn=collate)
""",
            "",
        ),
        Example(  # lengths that are no multiple of that
            "collator = DataCollatorWithPadding(tok, pad_to_multiple_of=64)  # <-\n",
            "",
            {"library": True, "width": 100},
        ),
        Example(
            "collator = DataCollatorWithPadding(tok, pad_to_multiple_of=8)  # <-\n",
            "",
            {"library": True, "width": 256},
        ),
        Example(  # what cuts, too
            "enc = tok(texts, truncation=True, max_length=args.longest)\n"
            "collator = DataCollatorWithPadding(tok, pad_to_multiple_of=args.longest)  # <-\n",
            "",
            {"library": True, "width": 256},
        ),
        Example("enc = tok(texts, padding=how, max_length=128, return_tensors='pt')  # <-\n", ""),
        Example("enc = tok(texts, padding=True, max_length=128, return_tensors='pt')  # <-\n", ""),
    )


def _files(evidence: Evidence) -> tuple[str, ...]:
    """The user's own files that may pad: those that deal with a model, and those of datasets."""
    loaders = evidence.record.loaders if evidence.record is not None else []
    datasets = (each.source_site.file for each in loaders if each.source_site is not None)
    return tuple(dict.fromkeys((*model_files(evidence), *datasets)))


def _places(files: Sequence[str], width: int) -> Iterator[Site]:
    """Where those files pad to a fixed length, or so far that it comes to `width`; then, where they do it by hand."""
    sources, drafts = Sources(), []
    for path in files:
        with contextlib.suppress(AdvisorError):
            drafts.append(Draft(sources.source(path)))
    for draft in drafts:
        yield from (_site(draft, call) for call in _padded_calls(draft, width))
    for draft in drafts:
        yield from (_site(draft, node) for node in padded_by_hand(draft))


def _padded_by_hand(finding: Finding, drafts: Drafts) -> str:
    """Where the script does it itself, in words; "" where nothing of that kind is seen."""
    read = [drafts[path] for path in file_list(finding, "files") if drafts.sources.has(path)]
    places = dict.fromkeys(at(_site(draft, node)) for draft in read for node in padded_by_hand(draft))
    return f"it is done by hand, at {', '.join(places)}" if places else ""


def _padded_calls(draft: Draft, width: int) -> Iterator[cst.Call]:
    """The calls that are told ``padding="max_length"``, or may be (a value from elsewhere), or to round up so far."""
    for call in draft.nodes(cst.Call):
        multiple = argument(call, _MULTIPLE)
        if has_starred(call):
            continue
        if _fixes(call) or (multiple is not None and _may_be(multiple.value, _multiples(width))):
            yield call


def _fixes(call: cst.Call) -> bool:
    """Whether a call pads to a fixed length, or may."""
    given = argument(call, "padding")
    if given is None:
        return False
    if is_literal(given.value):
        return string_value(given.value) == _FULL
    return argument(call, _FULL) is not None


def _multiples(width: int) -> list[int]:
    """What rounding up to may have given so many columns."""
    return [each for each in range(2 * _ALIGNED, width + 1) if width % each == 0]


def _may_be(value: cst.BaseExpression, numbers: Sequence[int]) -> bool:
    """Whether the value is one of those numbers, or comes from elsewhere."""
    return not is_literal(value) or any(literal_equals(value, each) for each in numbers)


def _collates(draft: Draft, call: cst.Call) -> bool:
    """Whether the call makes one of transformers' collate functions, which get a batch each."""
    return full_name(draft, call.func).rpartition(".")[2].startswith(_COLLATOR)


def _prepares(draft: Draft, call: cst.Call) -> bool:
    """Whether the call is a ``partial`` of the script's own collate function, whatever it is told but "max_length".

    That function asks only whether it is told that.
    """
    statement = draft.statement(call)
    if full_name(draft, call.func) != "functools.partial" or not call.args or statement is None:
        return False
    functions = [each for each in draft.nodes(cst.FunctionDef) if _is(call.args[0].value, each.name.value)]
    if len(functions) != 1:
        return False
    reads = [each for each in draft.nodes(cst.Name, functions[0].body) if each.value == "padding"]
    asked = m.Comparison(m.Name("padding"), [m.ComparisonTarget(m.Equal(), m.SimpleString())])
    full = [draft.parent(each) for each in reads]
    if not full or not all(m.matches(each, asked) and _FULL in draft.code(each) for each in full if each is not None):
        return False
    handed = {name for each in draft.nodes(cst.Call) for name in _names(each, _COLLATES)}
    return any(each.value in handed for each in draft.nodes(cst.Name, statement)) or functions[0].name.value in handed


def _is(node: cst.BaseExpression, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _gets_batch(drafts: Drafts, draft: Draft, call: cst.Call, finding: Finding) -> bool:
    """Whether a tokenizer makes the tensors of one batch: where it calls the model, or collates.

    Other results may be joined to those of other calls, which are to be of the same width then.
    """
    if argument(call, "return_tensors") is None or _TOKENIZER not in draft.code(call.func).lower():
        return False
    if any(isinstance(each, (cst.Lambda, cst.BaseComp)) for each in draft.ancestors(call)):
        return False
    function, loop = draft.function(call), draft.loop(call)
    for site in site_list(finding, "calls"):
        if site.file == draft.source.path and _around(draft, site.line) is function:
            # In a loop of its own it is called text by text, and what it gives is joined.
            return loop is None or draft.line(loop) <= site.line <= draft.position(loop).end.line
    if function is None:
        return False
    holder = draft.enclosing_class(call)
    name = holder.name.value if holder is not None and function.name.value == "__call__" else function.name.value
    paths = {draft.source.path, *(each for each in file_list(finding, "files") if drafts.sources.has(each))}
    return any(name in _names(each, _COLLATES) for path in paths for each in drafts[path].nodes(cst.Call))


def _around(draft: Draft, line: int) -> cst.FunctionDef | None:
    """The innermost function with that line."""
    inside = [
        each
        for each in draft.nodes(cst.FunctionDef)
        if draft.position(each).start.line <= line <= draft.position(each).end.line
    ]
    return inside[-1] if inside else None


def _names(call: cst.Call, keywords: tuple[str, ...]) -> set[str]:
    """The names in what a call is given by one of those keywords."""
    given = [each.value for each in call.args if each.keyword is not None and each.keyword.value in keywords]
    return {cst.ensure_type(each, cst.Name).value for value in given for each in m.findall(value, m.Name())}


def _without_mask(drafts: Drafts, forwards: Sequence[Site]) -> Iterator[Site]:
    """Calls of a library's model that give it token ids, and no mask of them."""
    for site in forwards:
        call = call_at(drafts[site.file], site) if drafts.sources.editable(site.file) else None
        if call is None or not call.args or any(each.star for each in call.args):
            continue
        by_position = sum(each.keyword is None for each in call.args)
        if by_position < 2 and "mask" not in drafts[site.file].code(call):
            yield site


def _joins(draft: Draft) -> bool:
    return any((get_full_name_for_node(each.func) or "").rpartition(".")[2] in _JOINS for each in draft.nodes(cst.Call))


def _site(draft: Draft, node: cst.CSTNode) -> Site:
    return Site(draft.source.path, draft.line(node))
