"""Activations are computed a second time in the backward, and there is memory to keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Drafts
from advisor.edit.calls import argument
from advisor.edit.loading.guard import conditional
from advisor.edit.locate import last_name
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.recomputing import recomputed_forward
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    file_list,
    framework_of,
    model_files,
)
from advisor.shared.frameworks import configured, construction

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_LEAST_SHARE = 0.3  # of the layers: of fewer the saving could not be told from nothing
# A transformer's block keeps 2 bytes for each number of its input with checkpointing, and 34 without, 5 more for each
# score of attention that is not fused (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
# Models", equations 1 and 2): 17 times as much, and 30 with scores of 350 tokens and heads 64 wide.
_TIMES, _TIMES_WITH_SCORES, _SOFTMAX = 17, 30, "aten::_softmax"
_ROOM = 0.8  # of the memory, which the longest sample may ask more of than the measured ones
# Bytes of a process before any model is made, where the host's memory counts: with torch, and with transformers; and
# the least that is taken for activations then.
_PROCESS, _PROCESS_OF_TRANSFORMERS, _LEAST_KEPT = 250e6, 650e6, 100e6
_SWITCH = "gradient_checkpointing_enable"
# What switches it on by another way: peft's, whose default it is, unsloth's, diffusers'.
_ELSEWHERE = re.compile(r"prepare_model_for_kbit_training|use_gradient_checkpointing|\benable_gradient_checkpointing")
_SAYS = re.compile(r"gradient_checkpointing|checkpoint_wrapper|torch\.utils(\.checkpoint| import [^\n]*\bcheckpoint)")


class NeedlessCheckpointing(Rule):
    """The backward computes the forward once more, to save memory that is not short.

    With activation checkpointing a block keeps its input only, and runs again in the backward. That makes room for
    models and batches that would not fit otherwise, at the price of another forward in each step, a quarter to a third
    of its time. Scripts keep it on from a larger model or a smaller GPU. Reported where the trace shows layers of the
    forward running again inside of the backward, and the memory at its peak leaves room for 17 to 30 times the
    activations that are kept now.

    When not: longer samples than those measured are to come; the memory is for a larger batch, which gains more on a
    GPU that waits for its launches; the same script is for a smaller GPU, too. Batch norms in a block count each batch
    twice with checkpointing, and once without.

    Source: PyTorch docs, ``torch.utils.checkpoint``; Hugging Face, "GPU training", "Gradient checkpointing" (about a
    fifth slower); Korthikanti et al. 2022 on what is kept. The time is the trace's own.
    """

    id = "needless-checkpointing"
    title = "Keep activations where memory has room"
    safety = Safety.EXACT
    takes_memory = True

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, memory = evidence.record, evidence.memory
        if record is None or evidence.compiled or not evidence.trains:
            return
        files = tuple(dict.fromkeys((*model_files(evidence), *record.modules)))
        if not any(model.checkpointing for model in record.models) and not any(_SAYS.search(text_of(f)) for f in files):
            return  # a function of somebody's own may call a layer in its backward
        again = recomputed_forward(evidence)
        if again is None or again.share < _LEAST_SHARE or not memory.peak or not memory.capacity:
            return
        kept = _kept(evidence, record, memory.peak)
        if kept is None:
            return
        times = _TIMES if evidence.operators.row(_SOFTMAX) is None else _TIMES_WITH_SCORES
        if memory.peak + times * kept > _ROOM * memory.capacity:
            return
        kernels = again.kernel_scale if (again.kernel_scale < 1).any() else None
        change = Change(remove_host_s=again.seconds / evidence.inflation, kernel_scale=kernels)
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        owners = [owner for each in record.optimizers if (owner := framework_of(each.owner))]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The backward computes {again.share:.0%} of the forward's layers once more, "
            f"{again.seconds * 1e3:.1f} ms of the traced step, and {memory.peak / memory.capacity:.0%} of the memory "
            "is taken at its peak.",
            gain=gain,
            evidence={
                "recomputed_share": again.share,
                "recomputed_s": again.seconds,
                "peak_bytes": memory.peak,
                "capacity_bytes": memory.capacity,
                "step_s": evidence.step_s,
            },
            site=next(_places(files), None),
            # Batch norms count each batch twice where it is computed twice.
            safety=Safety.BEHAVIOUR if any("BatchNorm" in each for m in record.models for each in m.layers) else None,
            parameters={
                "script": record.script,
                "files": files,
                "framework": owners[0] if owners else "",
                **construction(evidence),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        paths = dict.fromkeys((str(finding.parameters.get("script") or ""), *file_list(finding, "files")))
        files = [path for path in paths if path and sources.has(path)]
        drafts = Drafts(sources)
        calls = [(drafts[path], call) for path in files for call in _switches(drafts[path])]
        if not calls and finding.parameters.get("framework") == "transformers":
            text = "Pass TrainingArguments(gradient_checkpointing=False)."
            return configured(
                finding, sources, "transformers", {"gradient_checkpointing": "False"}, text, "Trainer runs the model"
            )
        where = f" at {at(finding.site)}" if finding.site is not None else ""
        text = f"Switch activation checkpointing off{where}, while memory has room."
        if not calls:
            return Advice(text, "where it is switched on cannot be told from the source")
        other = next((each for path in files if (each := _ELSEWHERE.search(text_of(path)))), None)
        if other is not None:
            return Advice(text, f"{other[0]} may switch it on as well")
        for draft, call in calls:
            statement = draft.statement(call)
            if statement is None or not isinstance(draft.parent(call), cst.Expr):
                return Advice(text, "the call is part of another statement")
            if conditional(draft, call):
                return Advice(text, "a condition decides whether it is switched on")
            draft.remove(statement)
        if any(_asks_trainer(drafts[path]) for path in files):
            return Advice(text, "TrainingArguments asks for it as well")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
model = AutoModelForCausalLM.from_pretrained(name)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
trainer = Trainer(model, args)
""",
            after="""
model = AutoModelForCausalLM.from_pretrained(name)
model.enable_input_require_grads()
trainer = Trainer(model, args)
""",
            parameters={"framework": "transformers"},
        ),
        Example(
            before='args = TrainingArguments("out", gradient_checkpointing=True, bf16=True)  # <- config\n',
            after='args = TrainingArguments("out", gradient_checkpointing=False, bf16=True)\n',
            parameters={"framework": "transformers"},
        ),
        Example(
            before="for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\n",
            after="",
            advice="Switch activation checkpointing off",
        ),
    )
    LEAVES_ALONE = (
        Example("if args.checkpointing:\n    model.gradient_checkpointing_enable()\n", ""),
        Example("for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\n", ""),
        Example("model = prepare_model_for_kbit_training(model)\nmodel.gradient_checkpointing_enable()\n", ""),
        Example("model.apply(lambda each: each.gradient_checkpointing_enable())\n", ""),
        Example(
            'model.gradient_checkpointing_enable()\nargs = TrainingArguments("out", gradient_checkpointing=True)\n', ""
        ),
    )


def _kept(evidence: Evidence, record: RunRecord, peak: int) -> float | None:
    """Bytes of the peak that may be activations; None where they cannot be told from the weights."""
    on_device = evidence.memory.on_device
    there = [model for model in record.models if any(not each.startswith("cpu") for each in model.devices) == on_device]
    kept = float(peak - sum(model.parameter_bytes for model in there))
    if on_device:
        return kept if kept > 0 else None
    kept -= _PROCESS_OF_TRANSFORMERS if "transformers" in record.environment.packages else _PROCESS
    return max(_LEAST_KEPT, kept)


def _switches(draft: Draft) -> list[cst.Call]:
    return [each for each in draft.nodes(cst.Call) if last_name(draft, each) == _SWITCH]


def _asks_trainer(draft: Draft) -> bool:
    given = (argument(call, "gradient_checkpointing") for call in draft.nodes(cst.Call))
    return any(each is not None and not m.matches(each.value, m.Name("False")) for each in given)


def _places(files: tuple[str, ...]) -> Iterator[Site]:
    """Lines that say something of it, other than imports."""
    for path in files:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            code = line.partition("#")[0]
            if re.search(r"gradient_checkpointing|\bcheckpoint\(|checkpoint_wrapper\(", code) and "import" not in code:
                yield Site(path, number)
