"""Indices that take of all positions what a linear layer has computed for each: ``self.head(x)[:, -1]``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import add_argument, argument
from advisor.edit.draft import Draft
from advisor.edit.models import made_once
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import assigned_once, is_bound_elsewhere, is_parameter, scope_of

_OTHERS = ("past_key_values", "hidden_states", "attentions")  # what a model returns beside the scores
_BY_NAME = ("gather", "index_select", "take_along_dim")
_PLAIN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def takings(draft: Draft, line: int, dim: int, index: int | None) -> Iterator[cst.Subscript]:
    """Indices in the function that begins at `line` (0: outside of all) that take `index` of dimension `dim`.

    Without `index` those that take a slice of it. All other dimensions are taken whole. `dim` below 0: those that take
    what may be a mask's, or, below -1, what two indices name, ``x[rows, last]``.
    """
    for node in draft.nodes(cst.Subscript):
        if draft.function_line(node) == line and _takes(draft, node, dim, index):
            yield node


def columns_taken(draft: Draft, line: int) -> list[int]:
    """The lines in the function that begins at `line` (0: outside of all) on which numbers are taken by their names."""
    calls = (node for node in draft.nodes(cst.Call) if draft.function_line(node) == line)
    return [draft.line(node) for node in calls if last_part(node.func) in _BY_NAME]


def take_before(draft: Draft, node: cst.Subscript) -> bool:
    """Have a linear layer be given only what `node` takes of its outputs; whether that could be done."""
    call = node.value
    named = isinstance(call, cst.Name)
    if isinstance(call, cst.Name):
        bound = _given_before(draft, node, call)
        if bound is None:
            return False
        call = bound
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


def keep_last(draft: Draft, node: cst.Subscript, parameter: str, forwards: Collection[cst.Call]) -> bool:
    """Have a library's model compute what `node` takes, the last position, alone; whether that could be done.

    ``model(ids, logits_to_keep=1)``, of the calls `forwards` of that model, where nothing but the last position is read
    of the scores that it returns, by that call itself or by a name.
    """
    scores = _given_once(draft, node.value, lambda use: _is_last(draft.parent(use)))
    if not isinstance(scores, cst.Attribute) or scores.attr.value != "logits":
        return False

    def harmless(use: cst.Name) -> bool:
        read = draft.parent(use)
        if not isinstance(read, cst.Attribute) or read.value is not use:
            return False
        if read.attr.value == "logits":
            return read is scores or _is_last(draft.parent(read))
        return read.attr.value in _OTHERS

    call = _given_once(draft, scores.value, harmless)
    if not isinstance(call, cst.Call) or not any(call is each for each in forwards):
        return False
    if any(argument(call, name) is not None for name in (parameter, "labels")):
        return False
    add_argument(draft, call, parameter, "1")
    return True


def _given_once(
    draft: Draft, value: cst.BaseExpression, may_be: Callable[[cst.Name], bool]
) -> cst.BaseExpression | None:
    """What a name is given by its only assignment, where all that reads it `may_be`; any other expression itself."""
    if not isinstance(value, cst.Name):
        return value
    scope = scope_of(draft, value)
    given = assigned_once(draft, value.value, scope)
    if given is None or is_parameter(scope, value.value) or is_bound_elsewhere(draft, value.value):
        return None
    names = [each for each in draft.nodes(cst.Name, scope) if each.value == value.value]
    return given if all(may_be(each) for each in names if not _names_another(draft, each)) else None


def _names_another(draft: Draft, name: cst.Name) -> bool:
    """Whether it is what is assigned to, an attribute of something else, or a keyword."""
    above = draft.parent(name)
    attribute = isinstance(above, cst.Attribute) and above.attr is name
    return attribute or isinstance(above, cst.AssignTarget) or (isinstance(above, cst.Arg) and above.keyword is name)


def _is_last(node: cst.CSTNode | None) -> bool:
    """``x[:, -1]``, of whatever further dimensions."""
    whole = m.SubscriptElement(m.Slice(None, None, None))
    last = m.SubscriptElement(m.Index(m.UnaryOperation(m.Minus(), m.Integer("1"))))
    return node is not None and m.matches(node, m.Subscript(slice=[whole, last, m.ZeroOrMore()]))


def _given_before(draft: Draft, node: cst.Subscript, name: cst.Name) -> cst.BaseExpression | None:
    """What the statement right before gives a name of which `node` is the last use; None where that is not certain."""
    statement = draft.statement(node)
    if statement is None or draft.loop(node) is not None or draft.function(node) is None:
        return None
    siblings = draft.siblings(statement)
    before = siblings[siblings.index(statement) - 1] if siblings.index(statement) else None
    wanted = m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name(name.value))])])
    if not isinstance(before, cst.SimpleStatementLine) or not m.matches(before, wanted):
        return None
    uses = [each for each in draft.nodes(cst.Name, scope_of(draft, name)) if each.value == name.value]
    later = [each for each in uses if draft.line(each) > draft.line(before.body[0])]
    return cst.ensure_type(before.body[0], cst.Assign).value if later == [name] else None


def _takes(draft: Draft, node: cst.Subscript, dim: int, index: int | None) -> bool:
    elements = [each.slice for each in node.slice]
    if dim < -1:
        return len(elements) == 2 and all(isinstance(each, cst.Index) and each.star is None for each in elements)
    if dim < 0:  # by a mask
        mask = m.Name() | m.Attribute() | m.Comparison() | m.UnaryOperation() | m.Subscript() | m.Call()
        return len(elements) == 1 and m.matches(elements[0], m.Index(mask))
    if len(elements) <= dim:
        return False
    whole = m.Slice(lower=None, upper=None, step=None)
    if not all(m.matches(each, whole) for each in (*elements[:dim], *elements[dim + 1 :])):
        return False
    taken = elements[dim]
    if index is None:
        return isinstance(taken, cst.Slice) and not (taken.lower is None and taken.upper is None)
    return isinstance(taken, cst.Index) and draft.code(taken) == str(index)
