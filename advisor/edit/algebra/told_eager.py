"""Where a script tells a model of the transformers library how to compute attention."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.scopes import string_value

KEYWORD = "attn_implementation"
READS = re.compile(r"\boutput_attentions\b|\.attentions\b")  # which the fused function does not give
_ATTRIBUTES = (KEYWORD, "_attn_implementation")  # of a configuration
EAGER, FUSED = "eager", '"sdpa"'


def told(draft: Draft) -> Iterator[cst.BaseExpression]:
    """What ``attn_implementation`` is given in a file, where that may be "eager": one operation at a time."""
    given = [found.value for call in draft.nodes(cst.Call) if (found := argument(call, KEYWORD)) is not None]
    for target in draft.nodes(cst.AssignTarget):
        above = draft.parent(target)
        attribute = target.target
        if isinstance(above, cst.Assign) and isinstance(attribute, cst.Attribute):
            given += [above.value] if attribute.attr.value in _ATTRIBUTES else []
    return (each for each in given if not isinstance(each, cst.SimpleString) or string_value(each) == EAGER)
