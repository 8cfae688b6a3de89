"""Numbers that tensors are filled with, and that 16 bits cannot hold: PyTorch raises there, and rounds to no infinity.

``scores.masked_fill(mask == 0, -1e9)`` of scores in float16: "value cannot be converted to type at::Half without
overflow". A sum with such a number gives an infinity instead.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.names import full_name
from advisor.edit.origins.origin import origin_of
from advisor.edit.preceding import last_given
from advisor.edit.precision.float32 import asks_wide, is_function, is_wide
from advisor.edit.scopes import assigned_once, parse_number

_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}  # finfo(…).max
_FILLS = frozenset((
    "masked_fill", "masked_fill_", "index_fill", "index_fill_", "fill_", "new_full", "full_like", "full", "pad",
    "scatter", "scatter_",
))  # fmt: skip
# Methods whose result has another type than what they are asked of; products have autocast's.
_RETYPE = frozenset(("to", "type", "type_as", "half", "bfloat16", "matmul", "mm", "bmm"))
_MASK = re.compile(r"[<>~]|[!=]=|mask", re.I)
_OPERATORS: dict[type[cst.BaseBinaryOp], Callable[[float, float], float]] = {
    cst.Add: operator.add, cst.Subtract: operator.sub, cst.Multiply: operator.mul, cst.Divide: operator.truediv,
    cst.Power: operator.pow,
}  # fmt: skip
_DEPTH = 6  # names followed from one to the next


def overflowing_fill(
    drafts: Drafts, draft: Draft, dtype: str, single: Collection[str] = (), within: Sequence[cst.CSTNode] | None = None
) -> str:
    """Where a file fills a tensor with a number beyond `dtype`'s range, as a clause; "" where nothing is seen.

    A tensor that is float32 all the same, by ``.float()`` or as the result of a function of `single`, may hold it.
    Looked through is what is `within`, or all.
    """
    filled = [each for part in ([draft.module] if within is None else within) for each in _filled(draft, part)]
    for target, given in filled:
        number = abs(_number(drafts, draft, given) or 0.0)
        if _LARGEST[dtype] < number < float("inf") and not _is_single(draft, target, single):
            file, line = os.path.basename(draft.source.path), draft.line(given)
            return (
                f"{file} fills a tensor with {draft.code(given)} at line {line}, which raises in {dtype}: fill it with "
                "torch.finfo(x.dtype).min, x being that tensor"
            )
    return ""


def _filled(draft: Draft, within: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """(the tensor whose type counts, what it may be filled with), by calls and by ``x[mask] = …``."""
    for call in draft.nodes(cst.Call, within):
        name, typed, of_torch = last_name(draft, call), argument(call, "dtype"), is_function(draft, call)
        if name not in _FILLS or not call.args or (name == "pad" and not of_torch):
            continue
        like: cst.BaseExpression | None
        if typed is not None:  # dtype=x.dtype; a type that is written out is no model's
            own = isinstance(typed.value, cst.Attribute) and typed.value.attr.value == "dtype"
            like = cst.ensure_type(typed.value, cst.Attribute).value if own else None
        elif of_torch:
            like = call.args[0].value if name != "full" else None
        else:
            like = call.func.value if isinstance(call.func, cst.Attribute) else None
        if like is not None:
            yield from ((like, arg.value) for arg in call.args)
    for assign in draft.nodes(cst.Assign, within):
        for into in (each.target for each in assign.targets):
            if isinstance(into, cst.Subscript) and any(_MASK.search(draft.code(each)) for each in into.slice):
                yield into.value, assign.value


def _number(drafts: Drafts, draft: Draft, node: cst.BaseExpression, depth: int = _DEPTH) -> float | None:
    """The number that an expression is, as far as the text tells: ``-1e9``, ``-(2**32)``, a name for one."""
    if isinstance(node, cst.BaseNumber):
        return parse_number(node)
    if isinstance(node, cst.UnaryOperation):
        number = _number(drafts, draft, node.expression, depth)
        return -number if number is not None and isinstance(node.operator, cst.Minus) else None
    if isinstance(node, cst.BinaryOperation):
        left, right = (_number(drafts, draft, each, depth) for each in (node.left, node.right))
        compute = _OPERATORS.get(type(node.operator))
        try:
            return float(compute(left, right)) if compute and left is not None and right is not None else None
        except (ArithmeticError, TypeError):  # too large, or complex
            return None
    if m.matches(node, m.Attribute(value=m.Call(), attr=m.Name("min") | m.Name("max"))):
        limits = cst.ensure_type(cst.ensure_type(node, cst.Attribute).value, cst.Call)
        wide = last_name(draft, limits) == "finfo" and all(is_wide(draft, arg.value) for arg in limits.args)
        return _LARGEST["float32"] if wide else None
    if isinstance(node, cst.Call) and full_name(draft, node.func) == "torch.tensor" and len(node.args) == 1:
        return _number(drafts, draft, node.args[0].value, depth)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
        return None
    if isinstance(node, cst.Name):
        value = last_given(draft, node) or _default(draft, node) or assigned_once(draft, node.value, draft.module)
        if value is not None:
            return _number(drafts, draft, value, depth - 1)
    found = origin_of(drafts, draft, node)
    return _number(drafts, found.draft, found.node, 0) if found is not None else None


def _default(draft: Draft, name: cst.Name) -> cst.BaseExpression | None:
    """What a parameter is where the caller does not say."""
    function = draft.function(name)
    parameters = draft.nodes(cst.Param, function.params) if function is not None else []
    return next((each.default for each in parameters if each.name.value == name.value), None)


def _is_single(draft: Draft, node: cst.BaseExpression, single: Collection[str], depth: int = _DEPTH) -> bool:
    """Whether a tensor is plainly float32, whatever types its model computes in."""
    if isinstance(node, cst.Name):
        value = last_given(draft, node) if depth else None
        return value is not None and _is_single(draft, value, single, depth - 1)
    if isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, cst.MatrixMultiply):
        return any(_is_single(draft, each, single, depth) for each in (node.left, node.right))
    if isinstance(node, cst.Subscript):
        return _is_single(draft, node.value, single, depth)
    if not isinstance(node, cst.Call):
        return False
    name = last_name(draft, node)
    if asks_wide(draft, node) or (name in single and argument(node, "dtype") is None):
        return True
    kept = isinstance(node.func, cst.Attribute) and name not in _RETYPE
    return kept and _is_single(draft, cst.ensure_type(node.func, cst.Attribute).value, single, depth)
