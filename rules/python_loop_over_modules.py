"""A loop in Python calls one module after another of several that are alike, where one call could do for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.facts import OPTIMIZER
from advisor.evidence.module_loops import ModuleLoop, module_loop
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.1


class PythonLoopOverModules(Rule):
    """A loop in Python calls several modules that are alike: the heads of an attention, members, filters.

    Each call costs some µs an operator, however little it computes, and as much in the backward; the optimizer has as
    many small tensors. One module with all weights does the same: a linear layer as wide as all heads together, whose
    output is taken apart, ``groups=n`` for a convolution per channel, and for whole networks
    ``torch.func.stack_module_state`` with ``torch.vmap``, or weights of shape (n, in, out) and ``torch.baddbmm``.
    Reported where a trace shows rounds of the same operators on the same shapes, and the source that they call the
    loop's own modules and that none needs what another has computed.

    When not: the modules differ in size; they are trained one by one, or saved each by itself; a checkpoint with their
    names has to be loaded (its weights can be joined once).

    Source: PyTorch tutorial, "Model ensembling" (``torch.func.stack_module_state``); PyTorch docs, ``torch.nn.Conv2d``,
    ``groups``. The gain is what the rounds took in the run, less their work on the elements.
    """

    id = "python-loop-over-modules"
    title = "Call the modules at once, not one after another"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = module_loop(evidence, text_of)
        if found is None:
            return
        taken = found.taken
        spent = (taken.forward_s + taken.backward_s) / evidence.inflation
        fewer = 1.0 - taken.times / taken.rounds
        saved = spent * (1.0 - taken.work_share) * fewer
        # On a GPU optimizers go over lists of tensors, however many there are.
        updating = 0.0 if evidence.device_is_gpu else evidence.breakdown.share(OPTIMIZER) * evidence.step_s
        updating *= found.parameters * fewer
        saved += updating
        gain = Gain.of(evidence.what_if(Change(remove_host_s=saved)))
        if gain.likely < _LEAST_GAIN:
            return
        each = round(taken.rounds / max(1.0, taken.times))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {at(found.site)} calls {each} modules that are alike, one after another, "
            f"{taken.operators:.0f} operators each: {spent * 1e3:.1f} ms of the step with their backward"
            + (f", {taken.times:.0f} times in it." if taken.times > 1.5 else "."),
            gain=gain,
            evidence={
                "loop_s": spent,
                "modules": each,
                "rounds_per_step": taken.rounds,
                "operators_per_round": taken.operators,
                "work_share": taken.work_share,
                "optimizer_s": updating,
                "step_s": evidence.step_s,
            },
            site=found.site,
            parameters={"kind": _kind(found)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        how = _HOW[str(finding.parameters.get("kind") or "")]
        return Advice(
            f"Let one module stand for all that the loop at {at(finding.site)} calls: {how}",
            "weights change their names and shapes with it, and how the results go together only their author can tell",
        )

    EXAMPLES = (
        Example(
            before="y = torch.cat([head(x) for head in self.heads], -1)  # <-\n",
            after="",
            parameters={"kind": "attention"},
            advice="one nn.Linear for the queries of all heads",
        ),
        Example(
            before="for i, conv in enumerate(self.convs):  # <-\n    outputs.append(conv(x[:, i : i + 1]))\n",
            after="",
            parameters={"kind": "convolution"},
            advice="groups=",
        ),
        Example(before="y = [net(x) for net in nets]  # <-\n", after="", advice="stack_module_state"),
    )
    LEAVES_ALONE = (Example("for layer in layers:  # <-\n    x = layer(x)\n", ""),)


_HOW = {
    "attention": "one nn.Linear for the queries of all heads (and one for their keys, and their values, or one for all "
    "three), x.view(batch, length, heads, size).transpose(1, 2) to take it apart, and "
    "F.scaled_dot_product_attention for all heads at once.",
    "convolution": "a convolution with groups=n and n times the channels convolves each part of the channels by "
    "filters of its own; what is given to each stands side by side in dimension 1.",
    "": "weights of shape (modules, in, out) and torch.baddbmm(biases, x, weights) for each layer, with x expanded to "
    "(modules, rows, in); or torch.func.stack_module_state(modules) and torch.vmap over torch.func.functional_call.",
}


def _kind(found: ModuleLoop) -> str:
    names = found.operators
    if any("conv" in each for each in names):
        return "convolution"
    attends = any(each.endswith(("softmax", "_softmax")) or "attention" in each for each in names)
    return "attention" if attends and any(each in ("aten::bmm", "aten::matmul") for each in names) else ""
