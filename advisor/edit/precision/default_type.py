"""A function that sets torch's default type for what it computes itself, and leaves it set for all that comes after."""

from __future__ import annotations

import re

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.locate import call_at, last_name
from advisor.harness.layout import Site

_SETS = "set_default_dtype"
# What a function that trains calls, or makes: no solver of anything.
_TRAINS = re.compile(r"^([A-Z][a-z]|main$|run$)|backward|zero_grad|^step$|train|fit|epoch|parameters|optim")


def leaves_default_type(draft: Draft, site: Site) -> str:
    """The name of the function that sets the default type at `site` and leaves it behind; "" where none does.

    It computes in a loop, and returns what it has: no training, and no set-up.
    """
    call = call_at(draft, site, (_SETS,))
    function = draft.function(call) if call is not None else None
    if function is None:
        return ""
    calls = [each for each in draft.nodes(cst.Call, function) if draft.function(each) is function]
    names = [last_name(draft, each) for each in calls]
    loops = [*draft.nodes(cst.For, function), *draft.nodes(cst.While, function)]
    returned = [each for each in draft.nodes(cst.Return, function) if each.value is not None]
    if names.count(_SETS) != 1 or any(map(_TRAINS.search, (*names, function.name.value))):
        return ""
    return function.name.value if loops and returned else ""
