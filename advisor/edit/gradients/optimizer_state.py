"""What a fused optimizer takes as it lies in memory: gradients, and its own state.

On a CPU its kernels go over weights, gradients and moments number by number, whatever order these have in memory. In
another order than the weight's, a gradient moves other weights than its own, and no error says so (torch 2.14: a
transposed gradient, and moments from before the weight had its channels last). An order can differ where a script
gives weights their gradients itself; what ``backward`` makes has the weight's order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft
from advisor.edit.names import last_part
from advisor.edit.scopes import string_value
from advisor.edit.sums import elements

_NAMED_SO = re.compile(r"(^|[_.])opts?\d*($|[_.])|optim(?!al|um)", re.IGNORECASE)
_OPTIMIZER = re.compile(r"Adam|SGD|Adagrad|(?i:optim)|^(dict|partial)$")
_GRADIENT = m.Attribute(attr=m.Name("grad"))
_IN_ORDER = re.compile(r"\w+_like$")  # these have the order of what they are like
_CONTIGUOUS = ("contiguous", "view", "view_as")
_ANOTHER_ORDER = "channels_last"


def gradients_given(draft: Draft) -> int | None:
    """The line at which the file gives a weight a gradient that may lie in memory otherwise; None: it does nowhere.

    ``p.grad = g``, but not ``p.grad = None``, ``p.grad = p.grad / n``, ``p.grad = flat[a:b].view_as(p)``.
    """
    plain = _ANOTHER_ORDER not in draft.source.text
    for target in (each for whole in targets_of(draft) for each in elements(whole)):
        if m.matches(target, m.Attribute(value=_GRADIENT, attr=m.Name("data"))):
            target = cst.ensure_type(target, cst.Attribute).value
        above = next((each for each in draft.ancestors(target) if isinstance(each, (cst.Assign, cst.AnnAssign))), None)
        if not m.matches(target, _GRADIENT) or above is None or above.value is None:
            continue
        value, own = above.value, draft.code(target)
        known = m.matches(value, m.Name("None"))
        known |= any(draft.code(each) == own for each in draft.nodes(cst.Attribute, value))
        if isinstance(value, cst.Call):
            name = last_part(value.func)
            known |= bool(_IN_ORDER.match(name)) or (plain and name in _CONTIGUOUS)
        if not known:
            return draft.line(target)
    return None


def loads_state(draft: Draft, names: Collection[str] = ()) -> bool:
    """Whether the file loads the state of an optimizer: one of `names`, or what it calls, or has stored as, one."""
    for call in draft.nodes(cst.Call):
        method = last_part(call.func)
        if not isinstance(call.func, cst.Attribute) or method not in ("load_state", "load_state_dict"):
            continue
        if method == "load_state":  # accelerate's, of all that it has prepared
            return True
        of, loop = call.func.value, draft.loop(call)
        strings = draft.nodes(cst.SimpleString, call)
        told = [string_value(each) for each in strings if isinstance(draft.parent(each), cst.Index)]  # its key
        told += [last_part(of) or draft.code(of), draft.code(loop.iter) if isinstance(loop, cst.For) else ""]
        if last_part(of) in names or any(_NAMED_SO.search(each) for each in told):
            return True
    return False


def loads_fused_state(files: Iterable[Draft]) -> bool:
    """Whether the files make a fused optimizer, or may, and load the state of one."""
    drafts = list(files)
    made = [call for draft in drafts for call in draft.nodes(cst.Call) if _OPTIMIZER.search(last_part(call.func))]
    given = [argument(call, "fused") for call in made]
    fused = any(each is not None and not m.matches(each.value, m.Name("False") | m.Name("None")) for each in given)
    return fused and any(map(loads_state, drafts))
