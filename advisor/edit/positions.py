"""Indices that take of all positions what a linear layer has computed for each: ``self.head(x)[:, -1]``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.origin import assignments, scope_of
from advisor.edit.pairwise import made_once

_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def takings(draft: Draft, line: int, dim: int, index: int | None) -> Iterator[cst.Subscript]:
    """Indices in the function that begins at `line` (0: outside of all) that take `index` of dimension `dim`.

    Without `index` those that take a slice of it. All other dimensions are taken whole.
    """
    for node in draft.nodes(cst.Subscript):
        function = draft.function(node)
        begins = 0 if function is None else min([draft.line(function), *map(draft.line, function.decorators)])
        if begins == line and _takes(draft, node, dim, index):
            yield node


def take_before(draft: Draft, node: cst.Subscript) -> bool:
    """Have a linear layer be given only what `node` takes of its outputs; whether that could be done."""
    call = node.value
    named = isinstance(call, cst.Name)
    if isinstance(call, cst.Name):
        scope = scope_of(draft, call)
        bound = list(assignments(draft, call.value, scope))
        uses = [each for each in draft.nodes(cst.Name, scope) if each.value == call.value]
        if len(bound) != 1 or len(uses) != 2 or bound[0] is None or draft.loop(call) is not draft.loop(bound[0]):
            return False
        call = bound[0]
    if not isinstance(call, cst.Call) or len(call.args) != 1 or call.args[0].star or call.args[0].keyword is not None:
        return False
    made = made_once(draft, call.func)
    if made is None or full_name(draft, made.func) != "torch.nn.Linear":
        return False
    given, whole = call.args[0].value, draft.code(node)
    index = whole[len(draft.code(node.value)) :]
    if "#" in whole or "\n" in whole or "#" in draft.code(call):
        return False
    code = draft.code(given) if isinstance(given, _PLAIN) else f"({draft.code(given)})"
    if named:
        draft.replace(node, draft.code(node.value))
        draft.replace(given, code + index)
    else:
        draft.replace(node, f"{draft.code(call.func)}({code}{index})")
    return True


def _takes(draft: Draft, node: cst.Subscript, dim: int, index: int | None) -> bool:
    elements = [each.slice for each in node.slice]
    if len(elements) <= dim:
        return False
    if not all(m.matches(each, m.Slice(lower=None, upper=None, step=None)) for each in elements[:dim]):
        return False
    if not all(m.matches(each, m.Slice(lower=None, upper=None, step=None)) for each in elements[dim + 1 :]):
        return False
    taken = elements[dim]
    if index is None:
        return isinstance(taken, cst.Slice) and not (taken.lower is None and taken.upper is None)
    return isinstance(taken, cst.Index) and draft.code(taken) == str(index)
