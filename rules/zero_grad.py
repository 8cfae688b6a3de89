"""Gradients are filled with zeros where dropping them does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.calls import ZERO_GRAD_PARAMETERS, argument, remove_argument
from advisor.edit.dataflow import loops
from advisor.edit.locate import call_at
from advisor.edit.origins.values import give
from advisor.edit.sums import elements
from advisor.evidence import Change
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_FILLS = ("aten::zero_", "aten::_foreach_zero_", "aten::fill_")
_ADDS = ("aten::add_", "aten::add")
# Bytes. On a CPU, memory of a tensor that is dropped goes back to the system from here on (glibc's M_MMAP_THRESHOLD and
# M_TRIM_THRESHOLD, mallopt(3)), and each page of the next one costs a fault: with six gradients of 4 MiB a step of
# 6.3 ms (5.6 to 7.1 in six runs) became 9.7 to 11.1 ms in five runs, and 4.4 ms in one.
_LARGE_ON_CPU = 128 << 10
_IDLE = (
    "Parameters that take no part in some steps are no longer moved by momentum or weight decay in those: an optimizer "
    "leaves out what has no gradient."
)


class ZeroGrad(Rule):
    """Gradients are set to zero instead of being dropped, so each backward adds to zeros.

    Filling a gradient writes all of it once, and the backward that follows reads it, adds, and writes again, where it
    could simply hand over the tensor that it has computed. ``zero_grad()`` drops gradients (sets them to ``None``)
    unless ``set_to_none=False`` says otherwise, and ``p.grad = None`` does where a loop over the parameters zeroes
    them by hand. Reported only where gradients were seen to be full of zeros before a backward.

    When not: code between ``zero_grad`` and ``backward`` reads ``p.grad`` and expects a tensor; parameters that take
    no part in some steps should still be moved by momentum or weight decay (an optimizer skips a gradient of
    ``None``); on a CPU, large gradients: their memory goes back to the system each time, and taking it anew costs more
    than filling it.

    Source: PyTorch performance tuning guide, "Use parameter.grad = None instead of model.zero_grad()"; torch.optim,
    ``Optimizer.zero_grad``: "this will in general have lower memory footprint, and can modestly improve performance".
    """

    id = "zero-grad"
    title = "Drop gradients instead of filling them with zeros"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        filled = sum(each.zero_filled for each in record.optimizers) if record is not None else 0
        if record is None or not filled:
            return
        if not evidence.device_is_gpu and _bytes_each(record) >= _LARGE_ON_CPU:
            return
        gain = Gain.of(evidence.what_if(_without_filling(evidence, filled)))
        if not gain.worth_it:
            return
        calls = tuple(each for each in call_sites(evidence, "zero_grad") if each.details.get("set_to_none") is False)
        optimizers = tuple(each.site for each in record.optimizers if each.site is not None and each.zero_filled)
        fills = [row for name in _FILLS if (row := evidence.operators.row(name)) is not None]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{filled} gradients are full of zeros when the backward begins: each step fills them, reads them "
            "back and adds, instead of taking over what it computed.",
            gain=gain,
            evidence={
                "zero_filled_gradients": filled,
                "fill_s": sum(row.self_s + row.device_s for row in fills),
                "step_s": evidence.step_s,
            },
            site=calls[0].site if calls else (optimizers[0] if optimizers else None),
            parameters={
                "zero_grad": sites(calls),
                "near": (*sites(call_sites(evidence, "backward", "Optimizer.step")), *optimizers),
            },
            safety=Safety.BEHAVIOUR if calls or _moves_by_zeros(record) else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        idle = f" {_IDLE}" if finding.safety is Safety.BEHAVIOUR else ""
        text = f"Let zero_grad() drop the gradients (set_to_none=True, its default) at {at(finding.site)}.{idle}"
        drafts = Drafts(sources)
        files = dict.fromkeys(site.file for name in ("zero_grad", "near") for site in site_list(finding, name))
        near = [path for path in files if sources.has(path)]
        if any(_makes_gradients(drafts[path]) for path in near):
            return Advice(text, "the script gives parameters gradients of its own, which would no longer be theirs")
        if any(_reads_unasked(drafts[path]) for path in near):
            return Advice(text, "a loop over the parameters reads gradients without asking whether there are any")
        for site in site_list(finding, "zero_grad"):
            draft = drafts[site.file]
            call = call_at(draft, site, ("zero_grad",))
            if call is None or not _drop(drafts, draft, call):
                return Advice(text, "where its argument comes from cannot be told from the source")
            if _steps_next(draft, call):
                return Advice(text, "an optimizer's step follows, which leaves out parameters without a gradient")
            if _read_after(draft, call):
                return Advice(text, "gradients are read behind it, before a backward makes them")
        edit = drafts.edit(text)
        why = "the place that zeroes them was not found"
        if edit is None:
            for path in near:
                if not _drop_by_hand(drafts[path]):
                    why = "they are read again behind the place that zeroes them"
            edit = drafts.edit(f"Set the gradients to None instead of zeroing them in a loop.{idle}")
        return edit or Advice(text, why)

    EXAMPLES = (
        Example(
            before="optimizer.zero_grad(set_to_none=False)  # keep them  # <- zero_grad\n",
            after="optimizer.zero_grad()  # keep them\n",
        ),
        Example(before="opt.zero_grad(False)  # <- zero_grad\n", after="opt.zero_grad()\n"),
        Example(
            before="""
SET_TO_NONE = False

def step(model):
    model.zero_grad(set_to_none=SET_TO_NONE)  # <- zero_grad
""",
            after="""
SET_TO_NONE = True

def step(model):
    model.zero_grad(set_to_none=SET_TO_NONE)
""",
        ),
        Example(
            before="""
def train(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()  # from the step before
    loss.backward()  # <- near
""",
            after="""
def train(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad = None  # from the step before
    loss.backward()
""",
        ),
        Example(
            before="""
for group in optimizer.param_groups:
    for w in group["params"]:
        w.grad.data.zero_()
loss.backward()  # <- near
""",
            after="""
for group in optimizer.param_groups:
    for w in group["params"]:
        w.grad = None
loss.backward()
""",
        ),
        Example(
            before="""
for step in range(9):
    w.grad.zero_()
    b.grad.zero_()
    loss(w, b).backward()  # <- near
    w.data -= lr * w.grad
""",
            after="""
for step in range(9):
    w.grad = None
    b.grad = None
    loss(w, b).backward()
    w.data -= lr * w.grad
""",
        ),
    )
    LEAVES_ALONE = (
        Example("optimizer.zero_grad(set_to_none=not keep)  # <- zero_grad\n", ""),
        Example("buffer.zero_()\nloss.backward()  # <- near\n", ""),
        Example("norm = w.grad.zero_().norm()\nloss.backward()  # <- near\n", ""),
        Example(  # views of one buffer
            """
flat = torch.zeros(size)
for p, part in zip(params, flat.split(sizes)):
    p.grad = part.view_as(p)
for x in xs:
    optimizer.zero_grad(set_to_none=False)  # <- zero_grad
    loss(x).backward()
""",
            "",
        ),
        Example(  # a part that decays, and does not learn
            """
for x in xs:
    loss(x).backward()  # <- near
    for p in model.trunk.parameters():
        p.grad.zero_()
    optimizer.step()
    optimizer.zero_grad()
""",
            "",
        ),
        Example(  # a head that takes no part in this step has none
            """
for step in range(9):
    task = step % 2
    opt.zero_grad(set_to_none=False)  # <- zero_grad
    loss(heads[task](trunk(x)), y).backward()
    for p in params:
        p.grad.clamp_(-1, 1)
    opt.step()
""",
            "",
        ),
        Example(
            """
opt.zero_grad(set_to_none=False)  # <- zero_grad
loss.backward()
norms = [p.grad.norm() for name, p in model.named_parameters()]
""",
            "",
        ),
        Example(
            """
for x in xs:
    opt.zero_grad(set_to_none=False)  # <- zero_grad
    print(model.head.weight.grad.norm())
    loss(x).backward()
""",
            "",
        ),
        Example(  # also behind the loop
            "for step in range(9):\n    loss(w).backward()  # <- near\n    w.data -= w.grad\n    w.grad.zero_()\n"
            "assert (w.grad == 0).all()\n",
            "",
        ),
        Example(  # a tensor of zeros is wanted
            """
for step in range(9):
    loss.backward()  # <- near
    for p in params:
        p.data -= lr * p.grad
        p.grad.zero_()
        norms.append(p.grad.norm())
""",
            "",
        ),
    )


def _bytes_each(record: RunRecord) -> float:
    """Mean size of a gradient, by the parameters that the optimizers hold."""
    count = sum(each.parameters for each in record.optimizers)
    return sum(each.parameter_bytes for each in record.models) / count if count else 0.0


def _moves_by_zeros(record: RunRecord) -> bool:
    """Whether an optimizer moves what has a gradient of zeros: not SGD without momentum (its decay is not recorded)."""
    return any(each.cls != "SGD" or each.momentum for each in record.optimizers if each.zero_filled)


def _without_filling(evidence: Evidence, filled: int) -> Change:
    """No fills of gradients, and none of the additions to them, as far as these operators are for gradients."""
    operators: dict[str, float] = {}
    for name in _FILLS:
        row = evidence.operators.row(name)
        if row is not None and row.count > 0:
            # One call fills all gradients (_foreach_zero_), or one call each.
            calls = row.count if "foreach" in name else min(filled, row.count)
            operators[name] = 1.0 - calls / row.count
    for name in _ADDS:
        row = evidence.operators.row(name)
        if row is not None and row.count >= filled:
            operators[name] = 1.0 - filled / row.count
            break
    kernels = {row.name: operators[row.operator] for row in evidence.kernels if row.operator in operators}
    return Change(operator_scale=operators, kernel_scale=kernels or None)


def _drop(drafts: Drafts, draft: Draft, call: cst.Call) -> bool:
    passed = argument(call, "set_to_none", ZERO_GRAD_PARAMETERS)
    if passed is None:
        return False
    if m.matches(passed.value, m.Name("False")) and len(call.args) == 1:
        remove_argument(draft, call, "set_to_none", ZERO_GRAD_PARAMETERS)
        return True
    return give(drafts, draft, call, "set_to_none", "True", ZERO_GRAD_PARAMETERS, False) == ""


_GRAD = m.Attribute(attr=m.Name("grad"))
_GRAD_DATA = m.Attribute(value=_GRAD, attr=m.Name("data"))
_ZEROED = m.Call(func=m.Attribute(value=_GRAD | _GRAD_DATA, attr=m.Name("zero_")), args=[])
_OPTIMIZER = re.compile(r"opt|scaler|adam|sgd", re.IGNORECASE)


def _drop_by_hand(draft: Draft) -> bool:
    """Have each statement ``p.grad.zero_()`` inside a loop say ``p.grad = None``; False where one has to stay."""
    all_of_them = True
    for statement in draft.nodes(cst.Expr):
        if not m.matches(statement.value, _ZEROED) or draft.loop(statement) is None:
            continue
        target = cst.ensure_type(cst.ensure_type(statement.value, cst.Call).func, cst.Attribute).value
        if m.matches(target, m.Attribute(attr=m.Name("data"))):
            target = cst.ensure_type(target, cst.Attribute).value
        if _read_after(draft, statement, draft.code(target)) or _steps_next(draft, statement):
            all_of_them = False
            continue
        assigned = cst.Assign([cst.AssignTarget(cst.ensure_type(target, cst.Attribute))], cst.Name("None"))
        draft.change(statement, lambda _, assigned=assigned: assigned)  # type: ignore[misc]
    return all_of_them


def _makes_gradients(draft: Draft) -> bool:
    """Whether the file sets a gradient to a tensor: views of one buffer, say, that a reduction runs over."""
    for assign in draft.nodes(cst.Assign):
        given = not m.matches(assign.value, m.Name("None"))
        if given and any(m.matches(each.target, _GRAD | _GRAD_DATA) for each in assign.targets):
            return True
    return False


def _steps_next(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether an optimizer's step comes before the next backward behind `node`: with zeros, that decays and moves."""
    loops = [each for each in draft.ancestors(node) if isinstance(each, (cst.For, cst.While))]
    end = draft.position(node).end.line
    for each in draft.nodes(cst.Attribute, loops[-1] if loops else draft.function(node)):
        if draft.line(each) <= end:
            continue
        if each.attr.value == "backward":
            return False
        if each.attr.value == "step" and _OPTIMIZER.search(draft.code(each.value)):
            return True
    return False


def _read_after(draft: Draft, node: cst.CSTNode, gradient: str = "") -> bool:
    """Whether `gradient`, or any, is read behind `node` in its function, before a backward makes it again."""
    end, function = draft.position(node).end.line, draft.function(node)
    asked = m.Comparison(comparisons=[m.ComparisonTarget(m.Is() | m.IsNot())])
    for each in draft.nodes(cst.Attribute, function):
        if draft.line(each) <= end or draft.function(each) is not function:
            continue
        if each.attr.value == "backward":
            return False
        named = draft.code(each) == gradient if gradient else each.attr.value == "grad"
        above = draft.parent(each)
        if named and not isinstance(above, cst.AssignTarget) and not m.matches(above or each, asked):
            return True
    return False


def _reads_unasked(draft: Draft) -> bool:
    """Whether a loop over parameters reads their gradients as if there were always one: a step may leave some out.

    Not where it zeroes them itself, which has gone well so far.
    """
    for loop in loops(draft):
        if "param" not in draft.code(loop.iter):
            continue
        names = {draft.code(each) for each in elements(loop.target)}
        whole = [loop, *(each for each in draft.ancestors(loop) if isinstance(each, cst.BaseComp))]
        body = whole[0] if isinstance(loop, cst.For) else whole[1]
        read = [each for each in draft.nodes(cst.Attribute, body) if m.matches(each, _GRAD)]
        places = [draft.parent(each) for each in read if draft.code(each.value) in names]
        asked = any(isinstance(each, cst.Comparison) for each in places)
        zeroed = any(m.matches(each, _ZEROED) for each in draft.nodes(cst.Call, body))
        if not asked and not zeroed and any(not isinstance(each, cst.AssignTarget) for each in places):
            return True
    return False
