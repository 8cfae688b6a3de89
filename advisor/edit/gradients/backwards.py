"""Several ``backward()`` calls of one block made one, of the sum of what they were called on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import full_name
from advisor.edit.scopes import is_target
from advisor.harness.layout import Site

# What is called in between for the gradients of one loss alone.
_FOR_GRADIENTS = re.compile(r"grad|clip|step|reduce|unscale")
# In a function that is called there; a weight that needs no gradient any more gets none of an earlier loss, either.
_USES_GRADIENTS = re.compile(r"\.grad\b|clip_grad|\.step\(|zero_grad|unscale_|requires_grad|\.data\s*[-+*/]?=(?!=)")
_NEW = re.compile(r"^torch\.(zeros|ones|empty|full|rand|tensor|arange|eye)\w*$|\.(new_\w+|clone)$")
_IN_PLACE = re.compile(r"[^_]_$")
_HOOKS = re.compile(r"register_hook|register_(full_)?backward|register_post_accumulate")
_SUMMED = m.Name() | m.Attribute() | m.BinaryOperation()


def add_losses(drafts: Drafts, calls: Sequence[Site]) -> str:
    """Have the last of the `calls` go back from the sum of all losses, and the others go. Why not, as a clause.

    Only where they are statements of one block, on losses that have names, which mean the same at the last one.
    """
    found: list[tuple[cst.Call, cst.SimpleStatementLine]] = []
    if len(calls) < 2 or len({site.file for site in calls}) != 1:
        return "the losses come from one place, one after the other"
    draft = drafts[calls[0].file]
    for site in sorted(calls, key=lambda each: each.line):
        call = call_at(draft, site, ("backward",))
        statement = draft.statement(call) if call is not None else None
        if call is None or not isinstance(statement, cst.SimpleStatementLine):
            return "the calls cannot be told from others of their lines"
        if len(statement.body) != 1 or not m.matches(statement.body[0], m.Expr(value=m.Call())):
            return "the calls are no statements of their own"
        if any(each.keyword is None or each.keyword.value != "retain_graph" for each in call.args):
            return "a backward is told more than whether to keep the graph"
        found.append((call, statement))
    siblings = draft.siblings(found[0][1])
    if any(statement not in siblings for _, statement in found):
        return "the calls are in different blocks"
    stretch = siblings[siblings.index(found[0][1]) : siblings.index(found[-1][1])]
    called = [last_name(draft, each) for statement in stretch for each in draft.nodes(cst.Call, statement)]
    functions = [each for each in draft.nodes(cst.FunctionDef) if each.name.value in called]
    uses = [each for each in functions if _USES_GRADIENTS.search(draft.code(each.body)) or _writes(draft, [each.body])]
    own = [each.name.value for each in uses]
    if other := next((each for each in called if _FOR_GRADIENTS.search(each) or each in own), ""):
        return f"`{other}` is called in between, maybe for the gradients of one loss"
    attributes = [each for statement in stretch for each in draft.nodes(cst.Attribute, statement)]
    if any(each.attr.value == "grad" for each in attributes):
        return "the gradients of one loss are used in between"
    if any(each.attr.value in ("requires_grad", "data") and is_target(draft, each) for each in attributes):
        return "what a loss goes back to is changed in between"
    if other := _writes(draft, stretch):
        return f"`{other}` changes a tensor in between, maybe one that the first loss needs"
    leaves = (cst.Break, cst.Continue, cst.Return, cst.Yield, cst.Raise)
    if any(draft.nodes(kind, statement) for kind in leaves for statement in stretch):
        return "what is in between may leave out the last backward"
    if _HOOKS.search(draft.source.text):
        return "a hook may change the gradients of each loss"
    losses = [cst.ensure_type(call.func, cst.Attribute).value for call, _ in found]
    if not all(m.matches(each, _SUMMED) for each in losses) or any(draft.nodes(cst.Call, each) for each in losses):
        return "the losses are computed where they go back"
    last_call, last = found[-1]
    for loss, (_, statement) in zip(losses, found, strict=True):
        between = siblings[siblings.index(statement) + 1 : siblings.index(last)]
        if changed := _names(draft, [loss]) & _changed(draft, between):
            return f"`{min(changed)}` means something else by then"
    if len({draft.code(_bare(each)) for each in losses}) != len(losses):
        return "the losses have one name"
    arguments = ", ".join(draft.code(each).rstrip(", ") for each in last_call.args)
    draft.replace(last_call, f"({' + '.join(draft.code(_bare(each)) for each in losses)}).backward({arguments})")
    for _, statement in found[:-1]:
        draft.remove(statement)
    return ""


def _writes(draft: Draft, nodes: Sequence[cst.CSTNode]) -> str:
    """A method there that writes into a tensor which they do not themselves make: ``p.data.clamp_``; "" for none."""
    assigns = [each for node in nodes for each in draft.nodes(cst.Assign, node)]
    new = [each for each in assigns if isinstance(each.value, cst.Call) and _makes(draft, each.value)]
    made = {to.target.value for each in new for to in each.targets if isinstance(to.target, cst.Name)}
    for call in (each for node in nodes for each in draft.nodes(cst.Call, node)):
        if not isinstance(call.func, cst.Attribute) or not _IN_PLACE.search(call.func.attr.value):
            continue
        of: cst.BaseExpression = call.func.value
        while isinstance(of, (cst.Attribute, cst.Subscript, cst.Call)) and not _makes(draft, of):
            of = of.func if isinstance(of, cst.Call) else of.value
        if isinstance(of, cst.Name) and of.value not in made:
            return draft.code(call.func)
    return ""


def _makes(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a function of torch, or a method like ``new_zeros``, gives a new tensor there."""
    name = full_name(draft, node.func) if isinstance(node, cst.Call) else ""
    return bool(_NEW.search(name))


def _bare(loss: cst.BaseExpression) -> cst.BaseExpression:
    """Without its parentheses, where a sum needs none."""
    if isinstance(loss, cst.BinaryOperation) and not m.matches(
        loss.operator, m.Add() | m.Multiply() | m.Divide() | m.Subtract()
    ):
        return loss
    return loss.with_changes(lpar=[], rpar=[])


def _names(draft: Draft, nodes: Sequence[cst.CSTNode]) -> set[str]:
    return {each.value for node in nodes for each in draft.nodes(cst.Name, node)}


def _changed(draft: Draft, statements: Sequence[Statement]) -> set[str]:
    """The names that the statements give another value or take away, or whose tensors they write to."""
    changed = [each for one in statements for each in (*targets_of(draft, one), *written_in_place(draft, one))]
    return _names(draft, [*changed, *(each for one in statements for each in draft.nodes(cst.Del, one))])
