"""A language model computes scores for its vocabulary, and the script reads its states alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts, Sources
from advisor.edit.algebra.unread_scores import states_alone, without_head
from advisor.edit.finding import found_in
from advisor.edit.sources import text_of
from advisor.evidence.algebra.unread_scores import unread_scores
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, model_files, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

# Classes of transformers with such a head whose ``base_model`` is the model without it.
_WITH_HEAD = re.compile(r"(ForCausalLM|LMHeadModel|ForMaskedLM)$")
_LIBRARYS = re.compile(r"transformers[/\\]models[/\\]")  # the file of a class
# What acts in the call of the whole model.
_IN_ITS_CALL = re.compile(
    r"device_map|dispatch_model|register_(module_)?(full_)?(forward|backward)|load_in_|quantization_config|peft|"
    r"DataParallel|fully_shard"
)
_CASTS = ("Accelerator", "Fabric")  # what they cast is the outermost module's call


class UnreadScores(Rule):
    """A language model with its head computes a score for each word at each position, and its hidden states alone are
    read.

    ``AutoModelForCausalLM`` and ``AutoModelForMaskedLM`` end in a product with as many columns as the vocabulary has
    words, which for a small model is most of its work. Who embeds texts with ``output_hidden_states=True`` and takes
    ``.hidden_states[-1]`` needs none of it: ``model.base_model(...)`` is the same model without the head, as
    ``AutoModel`` loads it, and gives the same states. Reported where no operator of the run takes the scores, and the
    source reads the states alone.

    When not: a wrapper around the model does something of its own in its call (an autocast, an adapter's hooks).

    Source: Hugging Face Transformers docs, ``PreTrainedModel.base_model``: "The main body of the model"; the shapes
    that the run recorded.
    """

    id = "unread-scores"
    title = "Leave out the head whose scores nobody reads"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if evidence.compiled or record is None or not evidence.step_s:
            return
        shape, shares = unread_scores(evidence)
        if not shape:
            return
        files = dict.fromkeys((*model_files(evidence), *record.modules))
        calls = [
            Site(path, line)
            for path in files
            for line in found_in((path, 0), lambda draft: [draft.line(each) for each in states_alone(draft)])
        ]
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if len(calls) != 1 or not gain.worth_it:
            return
        (site,) = calls
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step computes {'x'.join(map(str, shape))} scores, which nothing takes: "
            f"{at(site)} reads the model's states.",
            gain=gain,
            evidence={"scores_share": share, "scores_shape": "x".join(map(str, shape)), "step_s": evidence.step_s},
            site=site,
            unmet=_unmet(record, site, [text_of(path) for path in files]),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Call the model without its head {where(finding.site)}: model.base_model(...) gives the same states."
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        if finding.site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[finding.site.file]
        there = [each for each in states_alone(draft) if draft.line(each) == finding.site.line]
        if len(there) != 1:
            return Advice(text, "which call of its line it is cannot be told from the source")
        why = without_head(draft, there[0])
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

@torch.inference_mode()
def embed(model, enc):
    out = model(**enc, output_hidden_states=True)  # <-
    states = out.hidden_states[-1]
    return states[:, -1]
""",
            after="""
import torch

@torch.inference_mode()
def embed(model, enc):
    out = model.base_model(**enc, output_hidden_states=True)
    states = out.hidden_states[-1]
    return states[:, -1]
""",
        ),
        Example(
            before="""
class Encoder:
    def __call__(self, ids, mask):
        states = self.lm(ids, attention_mask=mask, output_hidden_states=True)["hidden_states"]  # <-
        return (states[-2] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
""",
            after="""
class Encoder:
    def __call__(self, ids, mask):
        states = self.lm.base_model(ids, attention_mask=mask, output_hidden_states=True)["hidden_states"]
        return (states[-2] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
""",
        ),
        Example(
            before="for x in xs:\n    h = lm(x, output_hidden_states=True)  # <-\n    add(h.hidden_states[-1])\n",
            after="for x in xs:\n    h = lm.base_model(x, output_hidden_states=True)\n    add(h.hidden_states[-1])\n",
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(f"def embed(model, ids, labels):\n    out = {call}  # <-\n    {use}\n", "")
            for call, use in (
                ("model(ids, output_hidden_states=True)", "return out.hidden_states[-1], out.logits"),
                ("model(ids, output_hidden_states=True)", "return pooled(out)"),
                ("model(ids, output_hidden_states=True)", "return out.hidden_states[-1] + out[0]"),
                ("model(ids, output_hidden_states=True, labels=labels)", "return out.hidden_states[-1]"),
                ("model(ids, output_hidden_states=True, logits_to_keep=1)", "return out.hidden_states[-1]"),
                ("model.base_model(ids, output_hidden_states=True)", "return out.hidden_states[-1]"),
                ("models[0](ids, output_hidden_states=True)", "return out.hidden_states[-1]"),
            )
        ),
        Example(
            "def embed(m, enc, labels):\n    return m(**enc, output_hidden_states=True).hidden_states[-1]  # <-\n", ""
        ),
    )


def _unmet(record: RunRecord, site: Site, texts: list[str]) -> tuple[str, ...]:
    """What keeps the model behind the head from being called in its place, in sentences."""
    called = {
        str(each.details.get("module"))
        for each in record.call_sites
        if each.kind == "Module.call" and (each.site.file, each.site.line) == (site.file, site.line)
    }
    known = {each.cls for each in record.models if _LIBRARYS.search(each.file) and _WITH_HEAD.search(each.cls)}
    why = []
    if len(called) != 1 or not called <= known:
        why.append("What is called there is none of transformers' models that are known to have a base_model.")
    if any(each.kind in _CASTS for each in record.call_sites):
        why.append("A framework has prepared the model's own call.")
    if any(map(_IN_ITS_CALL.search, texts)):
        why.append("The script has something done in the model's own call: a hook, a copy to another device.")
    return tuple(why)
