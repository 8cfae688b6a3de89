"""A loop in Python calls one module after another of several that are alike, where one call could do for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.facts import OPTIMIZER
from advisor.evidence.python_loops.field_tables import field_tables
from advisor.evidence.python_loops.module_loops import ModuleLoop, module_loop
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
    Embedding tables of one width, a column for each (the fields of a click model, categorical columns), may be of
    different lengths: they are parts of one table, in which a field's numbers begin at its offset. Reported where a
    trace shows rounds of the same operators on the same shapes, and the source that they call the loop's own modules
    and that none needs what another has computed.

    When not: the modules differ in size (tables: in width); they are trained one by one, or saved each by itself; a
    checkpoint with their names has to be loaded (its weights can be joined once). Of tables it is not reported on a
    GPU, where it was not measured.

    Source: PyTorch tutorial, "Model ensembling" (``torch.func.stack_module_state``); PyTorch docs, ``torch.nn.Conv2d``,
    ``groups``; torchrec, FBGEMM's table-batched embeddings. The gain is what the rounds took in the run, less their
    work on the elements; of tables less a model of measurements of the one lookup.
    """

    id = "python-loop-over-modules"
    title = "Call the modules at once, not one after another"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        found = list(self._alike(evidence))
        yield from found or self._tables(evidence)

    def _alike(self, evidence: Evidence) -> Iterator[Finding]:
        found = module_loop(evidence, text_of)
        if found is None:
            return
        taken = found.taken
        spent = (taken.forward_s + taken.backward_s) / evidence.inflation
        fewer = 1.0 - taken.times / taken.rounds
        saved = spent * (1.0 - taken.work_share) * fewer
        # On a GPU optimizers go over lists of tensors, however many there are.
        updating = 0.0 if evidence.device_is_gpu else evidence.breakdown.share(OPTIMIZER) * (evidence.step_s or 0.0)
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

    def _tables(self, evidence: Evidence) -> Iterator[Finding]:
        """Tables of one width but different lengths: what steps them is as long as before, the numbers are the same."""
        found = field_tables(evidence, text_of)
        if found is None:
            return
        gain = Gain.of(evidence.what_if(Change(remove_host_s=found.seconds - found.stays_s)))
        if gain.likely < _LEAST_GAIN:
            return
        every = "" if found.lookups == found.tables else f", {found.lookups} of the kind in the step"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {at(found.site)} looks {found.tables} columns up one after another, each in a table "
            f"of its own of width {found.width}{every}: {found.seconds * 1e3:.1f} ms of the step with their backward, "
            f"of which one lookup in one table takes {found.stays_s * 1e3:.1f}.",
            gain=gain,
            evidence={
                "loop_s": found.seconds,
                "at_once_s": found.stays_s,
                "modules": found.tables,
                "lookups_per_step": found.lookups,
                "step_s": evidence.step_s,
            },
            site=found.site,
            parameters={"kind": "bags" if found.bags else "tables"},
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
        Example(
            before="rows = [table(x[:, i]) for i, table in enumerate(self.tables)]  # <-\n",
            after="",
            parameters={"kind": "tables"},
            advice="nn.Embedding(sum(sizes), width)",
        ),
        Example(
            before="for k, bag in enumerate(self.bags):  # <-\n    rows.append(bag(indices[k], offsets[k]))\n",
            after="",
            parameters={"kind": "bags"},
            advice="nn.EmbeddingBag(sum(sizes), width, mode=...)",
        ),
    )
    LEAVES_ALONE = (Example("for layer in layers:  # <-\n    x = layer(x)\n", ""),)


_HOW = {
    "attention": "one nn.Linear for the queries of all heads (and one for their keys, and their values, or one for all "
    "three), x.view(batch, length, heads, size).transpose(1, 2) to take it apart, and "
    "F.scaled_dot_product_attention for all heads at once.",
    "convolution": "a convolution with groups=n and n times the channels convolves each part of the channels by "
    "filters of its own; what is given to each stands side by side in dimension 1.",
    "tables": "self.table = nn.Embedding(sum(sizes), width), self.register_buffer('first', "
    "torch.tensor([0, *sizes[:-1]]).cumsum(0)), and self.table(x + self.first) for all columns of x at once, of shape "
    "(rows, columns, width): .flatten(1) stands for torch.cat(…, 1), .sum(1) for a sum over them. A padding_idx or an "
    "initialization of each table's own has to be kept up by hand. An optimizer steps the one large table as it did "
    "the many; weights of an old checkpoint are joined by torch.cat([table.weight for table in tables]).",
    "bags": "self.bag = nn.EmbeddingBag(sum(sizes), width, mode=...) with the mode of them all; each table's indices "
    "plus the rows of the tables before it, joined by torch.cat, and the offsets of each plus the number of indices "
    "before them: self.bag(indices, offsets).view(tables, rows, width). An optimizer steps the one large table as it "
    "did the many; weights of an old checkpoint are joined by torch.cat([bag.weight for bag in bags]).",
    "": "weights of shape (modules, in, out) and torch.baddbmm(biases, x, weights) for each layer, with x expanded to "
    "(modules, rows, in); or torch.func.stack_module_state(modules) and torch.vmap over torch.func.functional_call.",
}


def _kind(found: ModuleLoop) -> str:
    names = found.operators
    if any("conv" in each for each in names):
        return "convolution"
    attends = any(each.endswith(("softmax", "_softmax")) or "attention" in each for each in names)
    return "attention" if attends and any(each in ("aten::bmm", "aten::matmul") for each in names) else ""
