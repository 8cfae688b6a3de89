"""Whether a script counts on how many columns a model's output for padded sequences has, or on what is in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.dataflow import Dataflow
from advisor.edit.draft import Draft
from advisor.edit.locate import call_at
from advisor.edit.names import last_part
from advisor.harness.layout import Site

# Taken over the columns, these differ with the padding among them; a sum without a mask is of use to nobody.
_OVER_ALL = ("mean", "max", "amax", "min", "amin", "std", "var", "median", "logsumexp")
_COLUMNS = ("1", "-2")  # of (rows, columns, features)
_LAST = m.SubscriptElement(m.Index(m.UnaryOperation(m.Minus(), m.Integer("1"))))


def over_all_columns(draft: Draft, forwards: Sequence[Site]) -> cst.CSTNode | None:
    """What takes a mean or the like over all columns of the output of `forwards`, padding among them, or the last one.

    ``out.last_hidden_state.mean(dim=1)``, ``torch.max(h, 1)``, ``h[:, -1]``; not ``(h * mask).mean(1)``, and not the
    last column where sequences are padded on their left.
    """
    calls = [call for site in forwards if site.file == draft.source.path and (call := call_at(draft, site)) is not None]
    if not calls:
        return None
    output = Dataflow(draft, calls)
    for call in draft.nodes(cst.Call):
        if last_part(call.func) not in _OVER_ALL:
            continue
        method = isinstance(call.func, cst.Attribute) and output.carries(call.func.value)
        given = cst.ensure_type(call.func, cst.Attribute).value if method else _first(call)
        if given is None or not output.carries(given):
            continue
        dim = argument(call, "dim", ("dim",) if method else ("input", "dim"))
        if dim is not None and draft.code(dim.value) in _COLUMNS and not _masked(draft, given):
            return call
    if re.search(r"padding_side\s*=\s*[\"']left", draft.source.text):
        return None
    for part in draft.nodes(cst.Subscript):
        if len(part.slice) >= 2 and m.matches(part.slice[1], _LAST) and output.carries(part.value):
            return part
    return None


def _first(call: cst.Call) -> cst.BaseExpression | None:
    return call.args[0].value if call.args and call.args[0].keyword is None and not call.args[0].star else None


def _masked(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether an expression, or what its name is given or has written into it, is one of a mask."""
    if "mask" in draft.code(node):
        return True
    scope = draft.function(node) or draft.module
    name = draft.code(node)
    for assign in draft.nodes(cst.Assign, scope):
        written = any(re.match(rf"{re.escape(name)}\b", draft.code(each.target)) for each in assign.targets)
        if written and "mask" in draft.code(assign):
            return True
    return False
