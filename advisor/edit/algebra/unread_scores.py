"""Calls of a library's language model of whose answer the states alone are read: ``model(ids, …).hidden_states``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, unpacked
from advisor.edit.draft import Draft
from advisor.edit.scopes import assigned_once, is_bound_elsewhere, is_parameter, scope_of

_ASKS = "output_hidden_states"
_STATES = ("hidden_states", "attentions", "past_key_values")  # what the model without its head gives as well
# What it takes as well; not labels, nor how many positions the head is for.
_TAKES = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "past_key_values"),
    *("use_cache", "output_attentions", _ASKS, "return_dict", "cache_position"),
)
_LABELS = re.compile(r"labels|DataCollatorForLanguageModeling")
_BASE = "base_model"  # what transformers calls a model without its head


def states_alone(draft: Draft) -> Iterator[cst.Call]:
    """Calls that ask for hidden states, of whose answer nothing but these is read, nor other things beside scores."""
    for call in draft.nodes(cst.Call):
        asked = argument(call, _ASKS)
        if asked is not None and m.matches(asked.value, m.Name("True")) and _reads_states(draft, call):
            yield call


def without_head(draft: Draft, call: cst.Call) -> str:
    """Have the model behind the head be called; why not, as a clause, where that is not certain."""
    if _BASE in draft.code(call.func):
        return "it is the model without its head already"
    given = [each for each in call.args if each.keyword is not None and not each.star]
    if any(each.keyword is not None and each.keyword.value not in _TAKES for each in given):
        return "it is given what a model without a head does not take"
    if unpacked(call) and _LABELS.search(draft.module.code):
        return "what is unpacked in the call may have labels in it"
    if not isinstance(call.func, (cst.Name, cst.Attribute)):
        return "what is called cannot be told from the source"
    draft.replace(call.func, f"{draft.code(call.func)}.{_BASE}")
    return ""


def _reads_states(draft: Draft, call: cst.Call) -> bool:
    if _is_states(draft.parent(call), call):
        return True
    given = draft.parent(call)
    if not isinstance(given, cst.Assign) or not m.matches(given, m.Assign([m.AssignTarget(m.Name())])):
        return False
    name = cst.ensure_type(given.targets[0].target, cst.Name)
    scope = scope_of(draft, name)
    if assigned_once(draft, name.value, scope) is not call:
        return False
    if is_parameter(scope, name.value) or is_bound_elsewhere(draft, name.value):
        return False
    read = []
    for each in draft.nodes(cst.Name, scope):
        above = draft.parent(each)
        if each.value != name.value or each is name or isinstance(above, cst.Del):
            continue
        if isinstance(above, cst.Arg) and above.keyword is each:
            continue
        if isinstance(above, cst.Attribute) and above.attr is each:
            continue
        read.append(_is_states(above, each))
    return bool(read) and all(read)


def _is_states(node: cst.CSTNode | None, of: cst.BaseExpression) -> bool:
    """Whether it takes the states out of an answer: ``of.hidden_states`` or ``of["hidden_states"]``."""
    if isinstance(node, cst.Attribute):
        return node.value is of and node.attr.value in _STATES
    if not isinstance(node, cst.Subscript) or node.value is not of or len(node.slice) != 1:
        return False
    index = node.slice[0].slice
    if not isinstance(index, cst.Index) or not isinstance(index.value, cst.SimpleString):
        return False
    return index.value.evaluated_value in _STATES
