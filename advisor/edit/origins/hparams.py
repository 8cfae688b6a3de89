"""Lightning's ``self.hparams``: what ``save_hyperparameters()`` keeps of the arguments that a class was made with."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.scopes import assignments, parameter, scope_of, string_value

_KEPT, _KEEPS = "self.hparams", "self.save_hyperparameters"


def kept_parameter(draft: Draft, node: cst.Attribute) -> tuple[cst.FunctionDef, cst.Param] | None:
    """``self.hparams.batch_size``, or of a name that stands for ``self.hparams``: the constructor, and its parameter.

    None where another attribute is read, or the class does not keep that argument.
    """
    holder = draft.enclosing_class(node)
    if holder is None or not _is_kept(draft, node.value):
        return None
    makers = [each for each in draft.nodes(cst.FunctionDef, holder) if each.name.value == "__init__"]
    made = next((each for each in makers if draft.enclosing_class(each) is holder), None)
    own = parameter(made, node.attr.value) if made is not None else None
    if made is None or own is None or list(assignments(draft, node.attr.value, made)):
        return None  # Lightning keeps what the name stands for when it is called
    if any(_is_written(draft, each) for each in draft.nodes(cst.Attribute) if get_full_name_for_node(each) == _KEPT):
        return None
    calls = [each for each in draft.nodes(cst.Call, made) if get_full_name_for_node(each.func) == _KEEPS]
    return (made, own) if len(calls) == 1 and _keeps(calls[0], node.attr.value) else None


def _is_written(draft: Draft, kept: cst.Attribute) -> bool:
    """Whether something else may be put into ``self.hparams`` there: by item, by a method, by whom it is given to."""
    above = draft.parent(kept)
    if isinstance(above, cst.Subscript):
        return isinstance(draft.parent(above), (cst.AssignTarget, cst.AugAssign, cst.AnnAssign))
    if isinstance(above, cst.Attribute):
        return isinstance(outer := draft.parent(above), cst.Call) and outer.func is above
    return isinstance(above, cst.Arg)


def _is_kept(draft: Draft, base: cst.BaseExpression) -> bool:
    if get_full_name_for_node(base) == _KEPT:
        return True
    if not isinstance(base, cst.Name):
        return False
    bound = list(assignments(draft, base.value, scope_of(draft, base)))
    return len(bound) == 1 and bound[0] is not None and get_full_name_for_node(bound[0]) == _KEPT


def _keeps(call: cst.Call, name: str) -> bool:
    """Whether ``save_hyperparameters(…)`` keeps the argument of that name: all but those to ignore, or those named."""
    ignored, named = argument(call, "ignore"), [each for each in call.args if each.keyword is None]
    if any(each.star for each in call.args):
        return False
    if ignored is not None:
        within = ignored.value.elements if isinstance(ignored.value, (cst.List, cst.Tuple)) else None
        texts = [string_value(each.value) for each in within] if within is not None else [string_value(ignored.value)]
        if not all(texts) or name in texts:
            return False
    return not named or name in [string_value(each.value) for each in named]
