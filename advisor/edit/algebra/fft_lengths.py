"""The length that a function gives its Fourier transforms, where they only multiply: ``n = a + b - 1``."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    bound_behind,
    is_bound_elsewhere,
    is_parameter,
    scope_of,
    variables,
)

_FORWARD = ("torch.fft.rfft", "torch.fft.fft")
_INVERSE = ("torch.fft.irfft", "torch.fft.ifft")
_PLAIN = m.Name() | m.Attribute()
_OF = m.SaveMatchedNode(_PLAIN, "of")
_MINUS_ONE = m.UnaryOperation(m.Minus(), m.Integer("1"))
_LAST = m.Subscript(m.Attribute(_OF, m.Name("shape")), [m.SubscriptElement(m.Index(_MINUS_ONE))]) | m.Call(
    func=m.Attribute(_OF, m.Name("size")), args=[m.Arg(_MINUS_ONE)]
)
_SHAPE = m.Attribute(_OF, m.Name("shape")) | m.Call(func=m.Attribute(_OF, m.Name("size")), args=[])


def convolution_length(draft: Draft, line: int) -> cst.BaseExpression | None:
    """What the function that begins at `line` (0: outside of all) assigns to the length of all its transforms.

    None where it is not certain that a larger one gives the same: where it is no sum of two signals' lengths less 1,
    which is what they make together, is used for anything else, or the inverse is of more than their product, or more
    of it is taken than a slice.
    """
    calls = [each for each in draft.nodes(cst.Call) if draft.function_line(each) == line]
    names, products, taken = set[str](), list[list[cst.Call]](), list[cst.BaseExpression]()
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
            end = _end(above) if isinstance(above, cst.Subscript) and above.value is call else None
            factors = _factors(draft, call.args[0].value)
            if end is None or factors is None:
                return None
            products.append(factors)
            taken.append(end)
    if len(names) != 1 or not products:
        return None
    (name,) = names
    scope = scope_of(draft, next(iter(given)))
    value = assigned_once(draft, name, scope)
    read = variables(draft, name, scope)
    # Read by the transforms alone; the one more is what is assigned to.
    if value is None or len(read) != len(given) + 1 or not given <= set(read) or not _is_sum_less_one(value):
        return None
    # Shorter than what the two make together it goes around, which a larger one would not; and no more may be taken.
    addends = cst.ensure_type(cst.ensure_type(value, cst.BinaryOperation).left, cst.BinaryOperation)
    signals = [_length_of(draft, each) for each in (addends.left, addends.right)]
    if not all(sorted(_signal(draft, one.args[0].value) for one in each) == sorted(signals) for each in products):
        return None
    if not all(isinstance(each, cst.Integer) or _length_of(draft, each) in signals for each in taken):
        return None
    given_later = any(bound_behind(draft, each.args[0].value, value) for factors in products for each in factors)
    return None if given_later or "" in signals else value


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


def _factors(draft: Draft, node: cst.BaseExpression) -> list[cst.Call] | None:
    """The forward transforms of which a spectrum is the product; None where it is another, or is needed elsewhere."""
    if isinstance(node, cst.Name):
        scope = scope_of(draft, node)
        value = assigned_once(draft, node.value, scope)
        once = len(variables(draft, node.value, scope)) == 2 and not is_parameter(scope, node.value)
        return _factors(draft, value) if value is not None and once else None
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        left, right = _factors(draft, node.left), _factors(draft, node.right)
        return [*left, *right] if left is not None and right is not None else None
    if m.matches(node, m.Call(m.Attribute(attr=m.Name("conj")), args=[])):
        return _factors(draft, cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value)
    return [node] if isinstance(node, cst.Call) and full_name(draft, node.func) in _FORWARD else None


def _end(node: cst.Subscript) -> cst.BaseExpression | None:
    """``length`` of ``[..., :length]``; None for another index."""
    upper = m.SubscriptElement(m.Slice(lower=None, upper=m.MatchIfTrue(lambda given: given is not None), step=None))
    there = m.matches(node, m.Subscript(slice=[m.SubscriptElement(m.Index(m.Ellipsis())), upper]))
    return cst.ensure_type(node.slice[-1].slice, cst.Slice).upper if there else None


def _signal(draft: Draft, node: cst.BaseExpression) -> str:
    """What is transformed, by its code; turned round, it is as long."""
    if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("flip") | m.Name("conj")))):
        return _signal(draft, cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value)
    return draft.code(node)


def _length_of(draft: Draft, node: cst.BaseExpression) -> str:
    """``x`` of ``x.shape[-1]``, ``x.size(-1)``, ``len(x)`` and of a name for one of them; "" for another number."""
    if isinstance(node, cst.Name):
        scope = scope_of(draft, node)
        given = list(assignments(draft, node.value, scope, elements=True))
        if len(given) != 1 or is_parameter(scope, node.value) or is_bound_elsewhere(draft, node.value):
            return ""
        return _length_of(draft, given[0]) if given[0] is not None else _last_of_shape(draft, node)
    found = m.extract(node, _LAST | m.Call(func=m.Name("len"), args=[m.Arg(_OF)]))
    of = found.get("of") if found is not None else None
    return draft.code(of) if isinstance(of, cst.BaseExpression) else ""


def _last_of_shape(draft: Draft, name: cst.Name) -> str:
    """``x`` of ``batch, channels, name = x.shape``."""
    for assign in draft.nodes(cst.Assign, scope_of(draft, name)):
        target = assign.targets[0].target
        last = target.elements[-1].value if isinstance(target, cst.Tuple) and target.elements else None
        found = m.extract(assign.value, _SHAPE) if last is not None and draft.code(last) == name.value else None
        if found is not None and isinstance(of := found["of"], cst.BaseExpression):
            return draft.code(of)
    return ""


def _is_sum_less_one(node: cst.BaseExpression) -> bool:
    return m.matches(node, m.BinaryOperation(m.BinaryOperation(operator=m.Add()), m.Subtract(), m.Integer("1")))
