"""A forward computes in each step what never changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.locate import call_at
from advisor.edit.python_loops.encoded import encode_before_loop
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.constant_functions import constant_functions_s
from advisor.evidence.encoding import encoding_share
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Recomputed, RunRecord

_LEAST_GAIN = 1.10
# Three forwards of less than that, one after another, may be one request's: what they have in common is the user who
# asks, say, and not the run's.
_SHORT_STEP_S = 1e-3
_MOST_TOKENS = 0.9  # of a text: the first one's encoding stays
_DECODER = re.compile(r"transformers[/\\]models[/\\]")  # whose encoder get_encoder() gives


class RecomputedConstants(Rule):
    """The model's forward computes the same tensor from the same tensors in every step.

    A graph's Laplacian and its eigenvalues, a bank of filters that a loop in Python fills, a table of distances: what
    depends on nothing that a batch brings, and on no weight that is trained, can be computed once, where the module is
    made, and kept as a buffer, which moves to a device with the module. So can the outputs of a whole model: a
    catalogue's vectors, with which each request is compared; or what a library's model makes of some of its inputs, the
    texts of all classes beside a picture. Reported where a run has seen it: the longer
    calls of torch on these lines were given the same numbers, and gave the same, in three steps whose batches differed.
    Where that is what a function returns, all that the function does counts.

    When not: it changes later (with the epoch, with a shape that here was always the same), then it can be kept until
    it does; it takes more memory than there is. On a GPU it is not reported: there calls take no time of their own. Nor
    of forwards of less than a millisecond: three of them may be one request's.

    Source: PyTorch docs, ``torch.nn.Module.register_buffer``. The gain is the time that these calls took, undisturbed.
    """

    id = "recomputed-constants"
    title = "Compute once what never changes"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.recomputed or evidence.device_is_gpu or not evidence.step_s:
            return
        if record.step_kind == "forward" and evidence.step_s < _SHORT_STEP_S:
            return
        longest = _longest(record.recomputed)
        decodes = longest.given and _decodes(record, longest)
        seconds = sum(each.seconds for each in record.recomputed)
        if decodes:  # all that encodes, not its longer calls alone
            seconds = max(seconds, encoding_share(evidence.detail) * _MOST_TOKENS * evidence.step_s)
        seconds = max(seconds, constant_functions_s(evidence, record.recomputed, text_of))
        gain = Gain.of(evidence.what_if(Change(remove_host_s=seconds)))
        if gain.likely < _LEAST_GAIN:
            return
        whole = ", where a model is called" if longest.whole else ""
        whole = ", where a model is given some of the same tensors" if longest.given else whole
        function = f" in {longest.site.function}()" if longest.site.function not in ("", "<module>") else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{seconds / evidence.step_s:.0%} of the step computes the same from the same in every step, most "
            f"of it{function} at {at(longest.site)}{by_way_of(longest.site, longest.called_from)}{whole}.",
            gain=gain,
            evidence={
                "recomputing_s": seconds,
                "calls_per_step": sum(each.calls for each in record.recomputed),
                "step_s": evidence.step_s,
            },
            site=longest.site,
            parameters={
                "lines": tuple(each.site for each in record.recomputed),
                "whole": longest.whole,
                "given": longest.given,
                "decodes": decodes,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        lines = finding.parameters.get("lines")
        others = {at(each) for each in lines} - {at(finding.site)} if isinstance(lines, tuple) else set()
        also = f" (and at {', '.join(sorted(others))})" if others else ""
        if finding.parameters.get("whole"):
            return Advice(
                f"Call the model that is called {where(finding.site)}{also} once, before the steps, keep what it "
                "gives, and use that until its weights or what it is given change.",
                "when they change only its author can tell",
            )
        if finding.parameters.get("given"):
            text = (
                f"Some of what the model is given {where(finding.site)}{also} is the same in every step: compute what "
                "the model makes of that alone once, before the steps, by the part of it that does so (CLIP's "
                "get_text_features, an encoder), and use the result until its weights change."
            )
            return self._encoded(finding, sources, text) or Advice(
                text, "which part of the model computes it only its author can tell"
            )
        return Advice(
            f"Compute what is computed {where(finding.site)}{also} once, where the module is made (or, "
            "where weights are part of it, when they are loaded), keep it with self.register_buffer(name, tensor, "
            "persistent=False), and use it in forward.",
            "that it stays the same for all of the training only its author can tell",
        )

    def _encoded(self, finding: Finding, sources: Sources, text: str) -> Edit | Advice | None:
        """The fix where a model of transformers decodes token by token in a loop that encodes its input each time."""
        if not finding.parameters.get("decodes") or finding.site is None:
            return None
        drafts = Drafts(sources)
        draft = drafts[finding.site.file]
        call = call_at(draft, finding.site)
        if call is None:
            return None
        if why := encode_before_loop(draft, call):
            return Advice(text, why)
        return edited(drafts, f"Call the encoder once in front of the loop {where(finding.site)}, not for each token.")

    EXAMPLES = (
        Example(
            before="def forward(self, x):\n    modes = torch.linalg.eigh(self.graph)[1]  # <-\n    return modes @ x\n",
            after="",
            advice="register_buffer",
        ),
        Example(  # a loop over tokens, each of which encodes the text anew
            before="""
tokens = start
for _ in range(40):
    out = model(input_ids=text, attention_mask=mask, decoder_input_ids=tokens, past_key_values=kept)  # <-
    tokens = out.logits.argmax(-1)
""",
            after="""
tokens = start
encoder_outputs = model.get_encoder()(input_ids=text, attention_mask=mask)
for _ in range(40):
    out = model(encoder_outputs=encoder_outputs, attention_mask=mask, decoder_input_ids=tokens, past_key_values=kept)
    tokens = out.logits.argmax(-1)
""",
            parameters={"given": True, "decodes": True},
        ),
        Example(
            before="def answer(self, x):\n    return self.tower(x) @ self.items(self.all).T  # <-\n",
            after="",
            parameters={"whole": True},
            advice="before the steps",
        ),
    )
    LEAVES_ALONE = (
        Example(  # nothing is encoded twice
            "for x in texts:\n    out = model(input_ids=x, decoder_input_ids=y)  # <-\n",
            "",
            {"given": True, "decodes": True},
        ),
        Example("out = clip(pixel_values=x, **prompts)  # <-\n", "", {"given": True}),
        Example("modes = torch.linalg.eigh(laplacian)[1]  # <-\n", ""),
    )


def _decodes(record: RunRecord, found: Recomputed) -> bool:
    """Whether a model of transformers is called there for one token after the other, with what it encodes."""
    lines = text_of(found.site.file).splitlines()[found.site.line - 1 : found.site.end_line or found.site.line]
    called = [each for each in record.models if each.calls]
    of_library = bool(called) and all(_DECODER.search(each.file) for each in called)
    return of_library and any("decoder_input_ids" in line for line in lines)


def _longest(found: list[Recomputed]) -> Recomputed:
    """The longest line of the function that takes longest."""
    taken: dict[tuple[str, str], float] = {}
    for each in found:
        key = each.site.file, each.site.function
        taken[key] = taken.get(key, 0.0) + each.seconds
    return max(found, key=lambda each: (taken[each.site.file, each.site.function], each.seconds))
