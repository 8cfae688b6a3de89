"""NumPy arrays that become tensors: whether one call converts several kinds of them, or shares memory written to later.

``torch.from_numpy`` and ``torch.as_tensor`` keep an array's memory; with ``.float()`` behind them they are a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name
from advisor.edit.origin import callers, parameter_names, scope_of
from advisor.edit.sums import elements, root

_SHARES = ("from_numpy", "as_tensor")
_WRITES = ("fill", "sort", "partition", "put", "itemset", "resize")
_INTO = ("numpy.copyto", "numpy.put", "numpy.place", "numpy.putmask", "numpy.fill_diagonal", "numpy.random.shuffle")


def converts_several(draft: Draft, call: cst.Call) -> bool:
    """Whether a call is given one array after another that need not be of one type: inputs and labels.

    The entries of a mapping, a list that is written out or taken apart again, or what a scope hands to its
    function in several calls.
    """
    if not call.args:
        return False
    used = {each.value for each in draft.nodes(cst.Name, call.args[0].value)}
    for above in draft.ancestors(call):
        if isinstance(above, cst.BaseComp):
            clause: cst.CompFor | None = above.for_in
            while clause is not None:
                if used & _targets(draft, clause) and (_is_several(draft, clause) or _taken_apart(draft, above)):
                    return True
                clause = clause.inner_for_in
        elif isinstance(above, cst.For) and used & _targets(draft, above) and _is_several(draft, above):
            return True
        elif isinstance(above, (cst.FunctionDef, cst.Lambda)):
            break
    function = draft.function(call)
    given = call.args[0].value
    if function is None or not isinstance(given, cst.Name):
        return False
    names = parameter_names(draft, function)
    handed: dict[cst.CSTNode, set[str]] = {}  # what each scope hands to it: x and y of one step
    for each in callers(draft, function) if given.value in names else ():
        passed = argument(each, given.value, names)
        handed.setdefault(scope_of(draft, each), set()).add(draft.code(passed.value) if passed is not None else "")
    return any(len(each) > 1 for each in handed.values())


def _targets(draft: Draft, loop: cst.For | cst.CompFor) -> set[str]:
    return {draft.code(each) for each in elements(loop.target)}


def _is_several(draft: Draft, loop: cst.For | cst.CompFor) -> bool:
    """Whether a loop goes over the entries of a mapping, or over a list of a few things that is written out."""
    if isinstance(loop.iter, (cst.Tuple, cst.List)):
        return True
    if isinstance(loop.iter, cst.Call):
        return last_name(draft, loop.iter) in ("items", "values", "keys")
    # for key in batch: batch[key] = torch.from_numpy(batch[key])
    each = m.Subscript(
        value=m.MatchIfTrue(lambda node: draft.code(node) == draft.code(loop.iter)),
        slice=[m.SubscriptElement(m.Index(m.MatchIfTrue(lambda node: draft.code(node) in _targets(draft, loop))))],
    )
    within = loop.body if isinstance(loop, cst.For) else draft.parent(loop)
    return bool(within is not None and m.findall(within, each))


def _taken_apart(draft: Draft, comprehension: cst.CSTNode) -> bool:
    """``x, y = (torch.from_numpy(each) for each in batch)``, or the same for arguments."""
    above = draft.parent(comprehension)
    if isinstance(above, cst.Assign):
        return any(isinstance(each.target, (cst.Tuple, cst.List)) for each in above.targets)
    return isinstance(above, (cst.Arg, cst.StarredElement)) and (not isinstance(above, cst.Arg) or bool(above.star))


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
    for target in draft.nodes(cst.AssignTarget):
        yield from (root(each) for each in elements(target.target) if isinstance(each, cst.Subscript))
    for update in draft.nodes(cst.AugAssign):
        yield root(update.target)
    for call in draft.nodes(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _WRITES:
            yield call.func.value
        if call.args and full_name(draft, call.func) in _INTO:
            yield call.args[0].value
        yield from (arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "out")
