"""Whether what a name holds is only read where it stands: nothing there changes it, or hands it on to be changed."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.in_place import is_in_place
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import is_target

# Attributes, methods and functions that give the same memory by another name.
_SAME = frozenset((
    "T", "mT", "H", "data", "real", "imag", "flat", "values", "detach", "numpy", "cpu", "cuda", "to", "float", "double",
    "half", "long", "int", "type", "type_as", "view", "view_as", "reshape", "squeeze", "unsqueeze", "flatten", "ravel",
    "transpose", "permute", "t", "swapaxes", "movedim", "moveaxis", "contiguous", "expand", "expand_as", "narrow",
    "select", "diagonal", "chunk", "split", "unbind", "from_numpy", "as_tensor", "asarray", "asanyarray",
    "ascontiguousarray", "broadcast_to", "atleast_1d", "atleast_2d", "atleast_3d", "astype", "items", "get",
))  # fmt: skip
_CHANGES = frozenset((
    "sort", "fill", "put", "itemset", "partition", "resize", "setfield", "append", "extend", "insert", "remove", "pop",
    "clear", "reverse", "setflags", "update", "setdefault", "popitem", "add", "discard", "shuffle", "copyto", "place",
    "putmask", "fill_diagonal", "put_along_axis",
))  # fmt: skip
# Whose functions leave what they are given as it is, but for those above.
LIBRARIES = ("torch.", "torchaudio.", "torchvision.", "numpy.", "scipy.", "librosa.", "math.")
_BUILTINS = frozenset(("len", "sum", "min", "max", "any", "all", "float", "int", "str", "print", "round", "abs"))
_CALCULATES = (cst.BinaryOperation, cst.Comparison, cst.ComparisonTarget, cst.FormattedStringExpression, cst.Index)


def only_read(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether what the expression gives is computed with, by operators or by functions of known libraries."""
    above = draft.parent(node)
    if above is None or is_target(draft, node):
        return False
    if isinstance(above, _CALCULATES) or m.matches(above, m.UnaryOperation(operator=m.Minus() | m.Not())):
        return True
    if isinstance(above, cst.AugAssign):
        return above.value is node
    if isinstance(above, cst.Subscript):
        return only_read(draft, above)
    if isinstance(above, cst.IfExp):
        return above.test is node or only_read(draft, above)
    if isinstance(above, cst.Attribute):
        call, name = draft.parent(above), above.attr.value
        if not isinstance(call, cst.Call) or call.func is not above:
            return not is_target(draft, above) and (name not in _SAME or only_read(draft, above))
        return not may_change(name, call) and (name not in _SAME or only_read(draft, call))
    call = draft.parent(above) if isinstance(above, cst.Arg) and not above.star else None
    if not isinstance(call, cst.Call) or may_change(last_part(call.func), call):
        return False
    name = full_name(draft, call.func)
    known = name in _BUILTINS or name.startswith(LIBRARIES)
    return known and (last_part(call.func) not in _SAME or only_read(draft, call))


def may_change(name: str, call: cst.Call) -> bool:
    """Whether a function or method of that name changes what it is called with, or of."""
    keywords = {each.keyword.value for each in call.args if each.keyword is not None}
    return name in _CHANGES or is_in_place(name) or not keywords.isdisjoint(("out", "inplace", "generator"))
