"""The length that a function gives its Fourier transforms, where they only multiply: ``n = a + b - 1``."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.scopes import assigned_once, is_parameter, scope_of, variables

_FORWARD = ("torch.fft.rfft", "torch.fft.fft")
_INVERSE = ("torch.fft.irfft", "torch.fft.ifft")


def convolution_length(draft: Draft, line: int) -> cst.BaseExpression | None:
    """What the function that begins at `line` (0: outside of all) assigns to the length of all its transforms.

    None where it is not certain that a larger one gives the same: where the length is no sum of two less 1, which is
    what two signals make together, is used for anything else, or the inverse is of more than their product, or more of
    it is taken than a slice.
    """
    calls = [each for each in draft.nodes(cst.Call) if draft.function_line(each) == line]
    names, inverse = set[str](), 0
    given: set[cst.Name] = set()
    for call in calls:
        called = full_name(draft, call.func)
        if called not in (*_FORWARD, *_INVERSE):
            continue
        length = _length(call)
        if length is None:
            return None
        names.add(length.value)
        given.add(length)
        if called in _INVERSE:
            above = draft.parent(call)
            if not isinstance(above, cst.Subscript) or above.value is not call or not _is_slice(above):
                return None
            if not _is_product(draft, call.args[0].value):
                return None
            inverse += 1
    if len(names) != 1 or not inverse:
        return None
    (name,) = names
    scope = scope_of(draft, next(iter(given)))
    value = assigned_once(draft, name, scope)
    read = variables(draft, name, scope)
    # Read by the transforms alone; the one more is what is assigned to.
    if value is None or len(read) != len(given) + 1 or not given <= set(read) or not _is_sum_less_one(value):
        return None
    return value


def lengthen(draft: Draft, value: cst.BaseExpression) -> None:
    """Have the length be the next power of two."""
    assert isinstance(value, cst.BinaryOperation)
    draft.replace(value, f"1 << ({draft.code(value.left)} - 2).bit_length()")


def _length(call: cst.Call) -> cst.Name | None:
    """The name that is given for `n`, of a transform over the last dimension."""
    length: cst.BaseExpression | None = None
    for at, arg in enumerate(call.args):
        keyword = arg.keyword.value if arg.keyword is not None else None
        if keyword == "n" or (keyword is None and at == 1):
            length = arg.value
            continue
        last = keyword != "dim" or m.matches(arg.value, m.UnaryOperation(m.Minus(), m.Integer("1")))
        if arg.star or not last or (keyword is None and at > 1) or keyword not in (None, "dim"):
            return None  # norm="ortho" divides by the length
    return length if isinstance(length, cst.Name) else None


def _is_product(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether a spectrum is a product of what forward transforms give, and nothing else needs it."""
    if isinstance(node, cst.Name):
        scope = scope_of(draft, node)
        value = assigned_once(draft, node.value, scope)
        once = len(variables(draft, node.value, scope)) == 2 and not is_parameter(scope, node.value)
        return value is not None and once and _is_product(draft, value)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        return _is_product(draft, node.left) and _is_product(draft, node.right)
    if m.matches(node, m.Call(m.Attribute(attr=m.Name("conj")), args=[])):
        return _is_product(draft, cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value)
    return isinstance(node, cst.Call) and full_name(draft, node.func) in _FORWARD


def _is_slice(node: cst.Subscript) -> bool:
    """``[..., :length]``; a sum may be more than there was, and a difference below 0 counts from the end."""
    computed = m.UnaryOperation() | m.BinaryOperation()
    upper = m.SubscriptElement(m.Slice(lower=None, upper=m.MatchIfTrue(lambda given: given is not None), step=None))
    there = m.matches(node, m.Subscript(slice=[m.SubscriptElement(m.Index(m.Ellipsis())), upper]))
    return there and not m.matches(cst.ensure_type(node.slice[-1].slice, cst.Slice).upper or node, computed)


def _is_sum_less_one(node: cst.BaseExpression) -> bool:
    return m.matches(node, m.BinaryOperation(m.BinaryOperation(operator=m.Add()), m.Subtract(), m.Integer("1")))
