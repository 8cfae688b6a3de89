"""Products of a step copy the same operand each time, as its heads do not lie in memory one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, by_way_of, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.05
_NAMES = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "rearrange")
_TEXT = (
    "Copy once what the products at {places} copy: .contiguous() where its dimensions are put into their order, in "
    "front of the loop"
)


class CopiedOperands(Rule):
    """Matrix products are given the same tensor many times in a step, and copy it each time before they multiply.

    ``torch.matmul`` folds all dimensions before the last two into one, which takes no copy only where they lie in
    memory one after another. Heads that ``permute`` or ``transpose`` put in front of the positions do not. Keys and
    values that are projected once, and that every step of a decoder, or every round of a solver, multiplies with, are
    copied whole by each of them. ``.contiguous()`` where they are made copies them once; a transposed view of the last
    two dimensions needs none. Reported where a run has seen products copy what they had copied before.

    When not: the memory of one more copy is not there; something is written later into what the tensor is a view of. On
    a GPU it is not reported: how long the copies take there was not measured.

    Source: PyTorch docs, ``torch.Tensor.view`` (which dimensions can be folded without a copy), ``torch.matmul``. The
    time is that of one copy, measured in the run.
    """

    id = "copied-operands"
    title = "Copy once what every product copies"
    safety = Safety.NUMERIC  # a product of another layout may add up in another order

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.copied_operands or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = record.copied_operands
        seconds = sum(each.seconds for each in lines)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=seconds)))
        if gain.likely < _LEAST_GAIN:
            return
        longest, copies = lines[0], sum(each.calls for each in lines)
        others = " and ".join(sorted({at(each.site) for each in lines[1:]} - {at(longest.site)})[:2])
        shape = "x".join(map(str, longest.shape))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Products at {at(longest.site)}{by_way_of(longest.site, longest.called_from)}"
            + (f", and at {others}," if others else "")
            + f" copy {shape} numbers, whose leading dimensions do not lie one after another, and others like them: "
            f"{copies:.0f} copies a step of what an earlier product had copied already, {seconds * 1e3:.1f} ms.",
            gain=gain,
            evidence={"copies_per_step": copies, "shape": shape, "copying_s": seconds, "step_s": step_s},
            site=longest.site,
            parameters={
                "products": tuple(each.site for each in lines),
                "laid_out": tuple(site for each in lines for site in each.laid_out),
                "certain": all(each.certain for each in lines),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        products, laid_out = site_list(finding, "products"), site_list(finding, "laid_out")
        text = _TEXT.format(places=", ".join(dict.fromkeys(map(at, products or (finding.site,)))))
        drafts, found = Drafts(sources), []
        for site in laid_out if finding.parameters.get("certain") else ():
            draft = drafts[site.file] if sources.has(site.file) else None
            call = call_at(draft, site, _NAMES) if draft is not None else None
            if draft is None or call is None or _is_written(draft, call):
                break
            found.append((draft, call))
        else:
            for draft, call in dict.fromkeys(found):
                draft.change(call, _copied)
            if found:
                return edited(drafts, f"{text}, at {', '.join(dict.fromkeys(map(at, laid_out)))}.")
        why = "which line that is, and whether anybody relies on its being no copy, cannot be told from the run"
        return Advice(f"{text}.", why)

    EXAMPLES = (
        Example(
            before="""
def heads(x):
    return x.view(x.size(0), x.size(1), 8, -1).permute(2, 0, 1, 3)  # <- laid_out

keys, values = heads(project_keys(memory)), heads(project_values(memory))
for query in queries:
    scores = torch.matmul(heads(query), keys.transpose(-2, -1))  # <- products
    glimpse = torch.matmul(scores.softmax(-1), values)
""",
            after="""
def heads(x):
    return x.view(x.size(0), x.size(1), 8, -1).permute(2, 0, 1, 3).contiguous()

keys, values = heads(project_keys(memory)), heads(project_values(memory))
for query in queries:
    scores = torch.matmul(heads(query), keys.transpose(-2, -1))
    glimpse = torch.matmul(scores.softmax(-1), values)
""",
            parameters={"certain": True},
        ),
        Example(
            before="""
k = (
    self.key(memory)
    .view(batch, length, heads, -1)
    .transpose(1, 2)  # <- laid_out
)
scores = [q @ k.mT for q in queries]  # <- products
""",
            after="""
k = (
    self.key(memory)
    .view(batch, length, heads, -1)
    .transpose(1, 2).contiguous()
)
scores = [q @ k.mT for q in queries]
""",
            parameters={"certain": True},
        ),
        Example(
            before="""
def attend(queries, keys, values):
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # <- laid_out
    return [q @ keys.mT @ values for q in queries]  # <- products
""",
            after="",
            parameters={"certain": True},
            advice=".contiguous()",  # two calls, and no columns to tell which
        ),
        Example(
            before="scores = [q @ keys.mT for q in queries]  # <- products\n",
            after="",
            advice=".contiguous()",
        ),
    )
    LEAVES_ALONE = (
        Example(
            "k = memory.transpose(1, 2)  # <- laid_out\nscores = [q @ k.mT for q in queries]  # <- products\n",
            "",
            {"certain": False},
        ),
        *(
            Example(f"{written}  # <- laid_out\nscores = q @ k.mT  # <- products\n", "", {"certain": True})
            for written in (
                "memory.transpose(1, 2).mul_(2)",
                "memory.transpose(1, 2)[:, 0] = 1",
                "memory.transpose(1, 2)[:, 0] += 1",
                "torch.add(x, y, out=memory.transpose(1, 2))",
            )
        ),
        Example(
            "k = project(memory)  # <- laid_out\nscores = [q @ k.mT for q in queries]  # <- products\n",
            "",
            {"certain": True},
        ),
    )


def _is_written(draft: Draft, call: cst.Call) -> bool:
    """Whether something is done in place with what the call gives, right there."""
    above = draft.parent(call)
    if isinstance(above, cst.Arg):
        return above.keyword is not None and above.keyword.value == "out"
    if isinstance(above, cst.Attribute):
        return above.attr.value.endswith("_")
    written = draft.parent(above) if isinstance(above, cst.Subscript) else None
    return isinstance(written, cst.AssignTarget) or (isinstance(written, cst.AugAssign) and written.target is above)


def _copied(node: cst.CSTNode) -> cst.Call:
    """The call with ``.contiguous()`` behind it, within the parentheses that it stands in."""
    call = cst.ensure_type(node, cst.Call)
    within = call.with_changes(lpar=(), rpar=())
    return cst.Call(cst.Attribute(within, cst.Name("contiguous")), lpar=call.lpar, rpar=call.rpar)
