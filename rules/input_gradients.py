"""The backward goes on to what comes into the model, which is no weight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import numpy as np

from advisor.edit import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.edit.names import last_part
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.unused_gradients import unused_backward
from advisor.evidence.outside import own_files
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# What says of a tensor that it needs a gradient, and of a model of transformers' that what it embeds does.
_ASKS = re.compile(r"\.requires_grad_\(\s*(True\s*)?\)|\brequires_grad\s*=\s*True\b|\.enable_input_require_grads\(")
_METHODS = ("requires_grad_", "enable_input_require_grads")
# What reads a gradient, and what takes one by something else than weights.
_READS = re.compile(
    r"(?<!autograd)\.grad\b(?!\s*=\s*None)|[\"']grad[\"']|register_\w*hook|retain_grad|captum"
)
_DIFFERENTIATES = re.compile(r"autograd\.(grad\b|functional)|\bfrom torch\.autograd import\b|jacobian|\bvjp\b")
_CHECKPOINTS = re.compile(r"checkpoint(ing)?(_enable)?\(|gradient_checkpointing|torch\.utils\.checkpoint")


class InputGradients(Rule):
    """The backward goes through a frozen model to what comes into it, and nobody reads the gradient that it has there.

    With adapters and checkpointing it is needed (``enable_input_require_grads()`` of transformers); where the model is
    frozen and only what stands on it is trained, it makes the forward keep everything for a backward that goes through
    the whole model and ends in a tensor that is thrown away. So does ``x.requires_grad_()`` that is left of a
    saliency map, an attack or a differential equation. Reported where each backward was seen to come to a tensor that
    is no weight, the script reads no ``.grad``, and what is done after the last weight's gradient takes long.

    When not: the script differentiates by its inputs, too: then ``loss.backward(inputs=…)`` with the weights that need
    gradients ends the backward where they do. Checkpointing with ``use_reentrant=True`` needs inputs with gradients.

    Source: PyTorch notes, "Autograd mechanics", "Setting requires_grad"; PyTorch docs, ``torch.Tensor.backward``.
    """

    id = "input-gradients"
    title = "End the backward where the last weight is"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.input_gradients or record.unused_gradients or evidence.compiled:
            return
        unused = unused_backward(evidence)
        texts = {file: text_of(file) for file in own_files(record)}
        if unused is None or any(map(_READS.search, texts.values())):
            return
        scale = np.ones(len(evidence.trace.kernels))
        scale[unused.kernels] = 0.0
        change = Change(
            remove_host_s=unused.seconds / evidence.inflation, kernel_scale=scale if len(unused.kernels) else None
        )
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        asking = _asking(texts)
        tensors = "a tensor that is no weight" if record.input_gradients == 1 else "tensors that are no weights"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each backward goes on to {tensors}, and nobody reads the gradient there: after the last weight's "
            f"it takes {unused.seconds * 1e3:.1f} ms of the traced step.",
            gain=gain,
            evidence={
                "unread_backward_s": unused.seconds,
                "gradients": record.gradients,
                "gradients_needed": record.gradients_needed,
                "step_s": evidence.step_s,
            },
            site=asking[0] if len(asking) == 1 else None,
            parameters={
                "differentiates": any(map(_DIFFERENTIATES.search, texts.values())),
                "checkpoints": any(map(_CHECKPOINTS.search, texts.values())),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        site = finding.site
        if finding.parameters.get("differentiates"):
            return Advice(
                "Tell the backward what it is for: loss.backward(inputs=[each for each in model.parameters() if "
                "each.requires_grad]).",
                "the script differentiates by its inputs, too, and has to go on doing so",
            )
        text = f"Do not ask for the gradient of what comes into the model {where(site)}".rstrip() + "."
        if finding.parameters.get("checkpoints"):
            text += " What is checkpointed needs use_reentrant=False then."
            return Advice(text, "the script checkpoints some of the model")
        if site is None:
            return Advice(text, "the script asks for gradients in several places, or a library does")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        call = call_at(draft, site, _METHODS)
        statement = draft.statement(call) if call is not None else None
        if call is None or not isinstance(statement, cst.SimpleStatementLine) or not _is_call(statement, call):
            return Advice(text, "the line does more than that")
        if last_part(call.func) == _METHODS[0] and not _of_batch(draft, statement, call):
            return Advice(text, "whether that is what comes into the model cannot be told from the source")
        if len(draft.siblings(statement)) == 1:
            return Advice(text, "nothing would be left of what it stands in")
        draft.remove(statement)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
encoder.requires_grad_(False)
encoder.enable_input_require_grads()  # <-
head = nn.Linear(64, 2)
""",
            after="""
encoder.requires_grad_(False)
head = nn.Linear(64, 2)
""",
        ),
        Example(
            before="""
for x, y in loader:
    x.requires_grad_()  # <-
    loss = F.cross_entropy(model(x), y)
""",
            after="""
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
""",
        ),
        Example(
            before="for x, y in loader:\n    x = x.requires_grad_()  # <-\n    loss = F.cross_entropy(model(x), y)\n",
            after="",
            advice="Do not ask for the gradient",
        ),
    )
    LEAVES_ALONE = (
        Example(before="head = nn.Linear(8, 2)\nhead.requires_grad_(True)  # <-\nrun(head)\n", after=""),
        Example(
            before="encoder.enable_input_require_grads()  # <-\nencoder.gradient_checkpointing_enable()\n",
            after="",
            parameters={"checkpoints": True},
        ),
        Example(
            before="x.requires_grad_()  # <-\nu = model(x)\n",
            after="",
            parameters={"differentiates": True},
        ),
    )


def _asking(texts: dict[str, str]) -> list[Site]:
    """The lines of the script that ask for a gradient; comments are none."""
    return [
        Site(file, number)
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if _ASKS.search(line.partition("#")[0])
    ]


def _of_batch(draft: Draft, statement: cst.SimpleStatementLine, call: cst.Call) -> bool:
    """Whether a tensor is asked about that the loop around it gives its name: no module, no weight."""
    receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
    loop = draft.loop(statement)
    if not isinstance(receiver, cst.Name) or not isinstance(loop, cst.For):
        return False
    targets = [loop.target, *(each.target for each in draft.nodes(cst.AssignTarget, loop))]
    return any(each.value == receiver.value for target in targets for each in draft.nodes(cst.Name, target))


def _is_call(statement: cst.SimpleStatementLine, call: cst.Call) -> bool:
    only = statement.body[0]
    return len(statement.body) == 1 and isinstance(only, cst.Expr) and only.value is call
