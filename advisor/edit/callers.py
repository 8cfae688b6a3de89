"""Where a function is called from, and what it is given there."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft


def callers(draft: Draft, function: cst.FunctionDef) -> list[cst.Call]:
    """The calls in this file that by their name are of `function`; for ``__init__``, of its class."""
    holder = draft.enclosing_class(function)
    name = function.name.value
    if name == "__init__" and holder is not None:
        name = holder.name.value
    return [
        call for call in draft.nodes(cst.Call) if (get_full_name_for_node(call.func) or "").rpartition(".")[2] == name
    ]
