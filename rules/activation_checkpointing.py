"""GPU memory is full of activations at a small batch: those of the blocks can be computed again instead of kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Edit
from advisor.edit.calls import argument
from advisor.edit.sources import text_of
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, framework_of
from advisor.shared.frameworks import configured, construction

if TYPE_CHECKING:
    import libcst as cst

    from advisor.edit import Draft, Drafts, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Model, RunRecord

_FULL = 0.85  # of the device's memory: the share up to which `batch-size` would fill it
_BUSY = 0.8  # of the step: a device that computes for longer has nothing to win from a larger batch
# Unless so few samples fill nearly all of its memory: then the next longer one does not fit.
_FEW_SAMPLES, _NEARLY_ALL = 4, 0.92
# Of the peak: with fewer activations there is little that checkpointing could take away.
_LEAST_ACTIVATIONS = 0.4
_TRAINING_COPIES = 4  # of the parameters: they themselves, gradients, Adam's two moments
_LEAST_BLOCKS = 2
_IMPORTED = re.compile(r"torch\.utils(\.checkpoint| import [^\n]*\bcheckpoint)|checkpoint_wrapper")
# Of transformers, since 4.35. The reentrant kind, which 4.x takes otherwise, gives no gradients to a block whose input
# has none: above a frozen bottom nothing but the head would go on learning.
_HOW, _NOT_REENTRANT = "gradient_checkpointing_kwargs", '{"use_reentrant": False}'
_BASIS = "memory for time: activations of a block are computed anew in the backward, about one more forward (Chen 2016)"


class ActivationCheckpointing(Rule):
    """Memory is full at a batch that leaves the GPU waiting, and most of it are activations kept for the backward.

    Autograd keeps what every layer of the forward computes until the backward has used it. With activation
    checkpointing a block keeps only its input and computes the rest once more in the backward: of a model of n equal
    blocks only n inputs and one block's activations are left. That costs about a forward pass more, and frees the
    memory for a larger batch. Reported where the peak is near the capacity, most of it neither parameters nor their
    gradients and moments, while the GPU waits for its small kernels to be launched; or where a handful of samples fills
    nearly all of it, so that the next longer one fails.

    When not: the GPU is busy all the time and nothing has to grow (the second forward costs); lower precision
    (``amp-autocast``) has not been tried, which halves activations and is faster besides; layers in the block draw
    random numbers in ways of their own (the states of torch's generators are put back, others are not), or are batch
    norms, which then count each batch twice.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; PyTorch docs,
    ``torch.utils.checkpoint``; Hugging Face, "GPU training", "Gradient checkpointing".
    """

    id = "activation-checkpointing"
    title = "Compute activations again instead of keeping them"
    safety = Safety.EXACT
    after = ("amp-autocast", "allocator-retries")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, memory = evidence.record, evidence.memory
        if record is None or not evidence.device_is_gpu or not evidence.trains or not memory.peak:
            return
        model = next((each for each in record.models if each.parameters and each.blocks), None)
        if model is None or memory.share is None or memory.share < _FULL or _checkpoints(record, model):
            return
        batch = next((each.batch_size for each in record.loaders if each.trains and each.batch_size), None)
        short = batch is not None and batch <= _FEW_SAMPLES and memory.share >= _NEARLY_ALL
        busy = evidence.shares.get("kernel", 0.0)
        if busy > _BUSY and not short:
            return
        kept = _activations(record, memory.peak)
        name, blocks = _block(model)
        if kept < _LEAST_ACTIVATIONS * memory.peak or blocks < _LEAST_BLOCKS:
            return
        owners = [owner for each in record.optimizers if (owner := framework_of(each.owner))]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{memory.share:.0%} of the GPU's memory is taken"
            + (f" with {batch} sample{'' if batch == 1 else 's'} a step" if batch else "")
            + f", {kept / memory.peak:.0%} of that by activations, while the GPU computes for "
            f"{busy:.0%} of the step: {'a longer sample' if short else 'a larger batch'} has no room.",
            gain=Gain(1.0, 1.0, 1.0, _BASIS),
            evidence={
                "peak_memory_share": memory.share,
                "activation_bytes": kept,
                "kernel_share": busy,
                "batch_size": batch,
                "blocks": blocks,
            },
            site=model.made,
            parameters={
                "block": name,
                "blocks": blocks,
                "framework": owners[0] if owners else "",
                "theirs": f"{os.sep}transformers{os.sep}" in model.file,  # others have no method to switch it on
                **construction(evidence),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("framework") == "transformers" and finding.parameters.get("theirs"):
            settings = {"gradient_checkpointing": "True", _HOW: _NOT_REENTRANT}
            given = ", ".join(f"{name}={code}" for name, code in settings.items())
            text = f"Pass TrainingArguments({given}), then a larger per_device_train_batch_size."
            fix = configured(finding, sources, "transformers", settings, text, "Trainer runs the model", _says_how)
            return fix if _is_whole(fix) else Advice(text, f"its {_HOW} cannot be set at the same place")
        name, blocks = str(finding.parameters.get("block", "")), finding.parameters.get("blocks")
        which = f"each of the {blocks} {name} blocks" if name else "each block of the model"
        return Advice(
            f"In the forward, call {which} as torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) instead "
            "of block(x), then raise the batch size.",
            "which of the model's calls to wrap is for its author to say",
        )

    EXAMPLES = (
        Example(
            before="for block in self.blocks:\n    x = block(x)\n",
            after="",
            parameters={"block": "Layer", "blocks": 12},
            advice="each of the 12 Layer blocks as torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        ),
        Example(
            before='args = TrainingArguments("out", per_device_train_batch_size=2)  # <- config\n',
            after='args = TrainingArguments("out", per_device_train_batch_size=2, gradient_checkpointing=True, '
            'gradient_checkpointing_kwargs={"use_reentrant": False})\n',
            parameters={"framework": "transformers", "theirs": True},
        ),
        Example(  # an option of the script's own, which says nothing of how
            before="""
parser.add_argument("--ckpt", action="store_true")
options = parser.parse_args()
args = TrainingArguments("out", gradient_checkpointing=options.ckpt)  # <- config
""",
            after="",
            parameters={"framework": "transformers", "theirs": True},
            advice='gradient_checkpointing_kwargs={"use_reentrant": False}',
        ),
        Example(
            before="(args,) = parser.parse_args_into_dataclasses()  # <- config\n",
            after="",
            parameters={"framework": "transformers", "theirs": True},
            options={
                "--gradient_checkpointing": "True",
                "--gradient_checkpointing_kwargs": '{"use_reentrant": false}',
            },
        ),
    )
    LEAVES_ALONE = (
        Example("for block in self.blocks:\n    x = block(x)\n", "", {"block": "Layer", "blocks": 12}),
        Example('args = TrainingArguments("out")  # <- config\n', "", {"framework": "transformers", "blocks": 12}),
        Example(  # how, the script says itself
            'args = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})  # <- config\n',
            "",
            {"framework": "transformers", "theirs": True},
        ),
    )


def _says_how(drafts: Drafts, draft: Draft, call: cst.Call) -> str:
    """Why the settings are no edit, where the script has a way of its own in mind."""
    return f"the script has {_HOW} of its own" if argument(call, _HOW) is not None else ""


def _is_whole(fix: Edit | Argument | Advice) -> bool:
    """Whether a fix that switches checkpointing on says how as well: of a file, say, only what is there can change."""
    if isinstance(fix, Argument):
        return f"--{_HOW}" in fix.options
    return not isinstance(fix, Edit) or any(_NOT_REENTRANT in text for text in fix.texts.values())


def _checkpoints(record: RunRecord, model: Model) -> bool:
    """Whether the model does so already: it says so, or one of the script's files calls for it."""
    files = {record.script, *model.own.values()}
    return model.checkpointing or any(_IMPORTED.search(text_of(path)) for path in files)


def _activations(record: RunRecord, peak: int) -> float:
    """Bytes of the peak that are none of the parameters, their gradients and an optimizer's moments."""
    return max(0.0, peak - _TRAINING_COPIES * sum(model.parameter_bytes for model in record.models))


def _block(model: Model) -> tuple[str, int]:
    """The class whose instances repeat in the model, the outermost of equals first, and how many there are."""
    repeated = {name: count for name, count in model.blocks.items() if count >= _LEAST_BLOCKS}
    return max(repeated.items(), key=lambda each: (each[0] in model.own, each[1]), default=("", 0))
