"""Where a script writes into a tensor or an array that it has: ``x[i] = 1``, ``x += 1``, ``x.fill_(0)``, ``out=x``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.dataflow import loops
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name
from advisor.edit.sums import elements, root


def is_in_place(name: str) -> bool:
    """Whether what is called so writes into what it is called on or given: ``add_``, ``relu_``; not ``__add__``."""
    return re.search(r"[^_]_$", name) is not None


def places_written(draft: Draft, within: cst.CSTNode | None = None) -> Iterator[cst.BaseExpression]:
    """What is written to in place in the file, or below `within`, as it is written there: ``x[i]`` of ``x[i] = 1``,
    ``x`` of ``x += 1``, ``x.fill_(0)``, ``torch.relu_(x)``, ``F.relu(x, inplace=True)`` and ``torch.exp(y, out=x)``.

    By its text alone: the number of ``count += 1`` is given, too.
    """
    targets = [each.target for each in draft.nodes(cst.AssignTarget, within)]
    targets += [each.target for each in loops(draft, within)]
    yield from (each for target in targets for each in elements(target) if isinstance(each, cst.Subscript))
    yield from (each.target for each in draft.nodes(cst.AugAssign, within))
    yield from (each.value for each in draft.nodes(cst.Attribute, within) if is_in_place(each.attr.value))
    keywords = (each for each in draft.nodes(cst.Arg, within) if each.keyword is not None)
    yield from (each.value for each in keywords if each.keyword is not None and each.keyword.value == "out")
    for call in draft.nodes(cst.Call, within):
        if call.args and call.args[0].keyword is None and not call.args[0].star and _is_function(draft, call):
            yield call.args[0].value


def written_in_place(draft: Draft, within: cst.CSTNode | None = None) -> Iterator[cst.BaseExpression]:
    """The tensors, arrays and numbers that are written to in place (`places_written`): ``x`` of ``x[i][j] = 1``."""
    yield from map(root, places_written(draft, within))


def _is_function(draft: Draft, call: cst.Call) -> bool:
    """Whether a function is called that writes into its first argument, or anything told to do so."""
    asked = argument(call, "inplace")
    if asked is not None and m.matches(asked.value, m.Name("True")):
        return True
    function = isinstance(call.func, cst.Name) or full_name(draft, call.func).startswith("torch.")
    return function and is_in_place(last_name(draft, call))
