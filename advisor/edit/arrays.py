"""NumPy arrays that become tensors: whether one call shares memory that is written to later.

``torch.from_numpy`` and ``torch.as_tensor`` keep an array's memory; with ``.float()`` behind them they are a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import last_name
from advisor.edit.names import full_name
from advisor.edit.scopes import scope_of

_SHARES = ("from_numpy", "as_tensor")
_WRITES = ("fill", "sort", "partition", "put", "itemset", "resize")
_INTO = ("numpy.copyto", "numpy.put", "numpy.place", "numpy.putmask", "numpy.fill_diagonal", "numpy.random.shuffle")


def written_later(draft: Draft, call: cst.Call) -> bool:
    """Whether the array that a call shares the memory of is written to afterwards: the tensor is meant to follow."""
    if last_name(draft, call) not in _SHARES or not call.args:
        return False
    array = call.args[0].value
    if not isinstance(array, (cst.Name, cst.Attribute)):
        return False
    name, scope, loop = draft.code(array), scope_of(draft, call), draft.loop(call)
    for node in _written(draft):
        if draft.code(node) != name:
            continue
        there = scope_of(draft, node)
        if isinstance(array, cst.Name) and there is not scope and scope is not draft.module:
            continue
        again = loop is not None and any(each is loop for each in draft.ancestors(node))  # converted anew after it
        if not again and (there is not scope or draft.line(node) > draft.line(call)):
            return True
    return False


def _written(draft: Draft) -> Iterator[cst.CSTNode]:
    """The arrays, and whatever else, that are written to in place."""
    yield from written_in_place(draft)
    for call in draft.nodes(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _WRITES:
            yield call.func.value
        if call.args and full_name(draft, call.func) in _INTO:
            yield call.args[0].value
