"""What a function's text computes, number by number: a few of torch's operations on arrays, and arithmetic.

To know a formula by what it gives, however it is written. Anything else, and what the text does not tell, is refused.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import libcst as cst
import numpy as np

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, plain_name

Value = Any
"""A number, an array of float64, or a tuple of these."""

erf = np.vectorize(math.erf, otypes=[float])
_ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "square": np.square,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
}


def _power(base: Any, exponent: Any) -> Any:
    return base ** float(exponent)  # of whole numbers one could be of any length


SPREADS = ("var", "std", "var_mean")
_REDUCED: dict[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "amax": np.max, "max": np.max}
_KEYWORDS = ("dim", "axis", "keepdim", "keepdims", "unbiased", "correction")
_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "pow": _power,
    "mul": operator.mul,
    "div": operator.truediv,
    "add": operator.add,
    "sub": operator.sub,
}
_SHAPES = ("size", "unsqueeze", "expand_as", "view", "reshape")
_METHODS = frozenset((*_ELEMENTWISE, *SPREADS, *_REDUCED, *_OF_TWO, *_SHAPES))
_BINARY: dict[type[cst.BaseBinaryOp], Callable[[Any, Any], Any]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.Power: _power,
}
_AUGMENTED: dict[type[cst.BaseAugOp], Callable[[Any, Any], Any]] = {
    cst.AddAssign: operator.add,
    cst.SubtractAssign: operator.sub,
    cst.MultiplyAssign: operator.mul,
    cst.DivideAssign: operator.truediv,
}
_CONSTANTS = {f"{module}.pi": math.pi for module in ("math", "numpy", "torch")}
_NUMBERS = {f"{module}.sqrt": math.sqrt for module in ("math", "numpy")}


class UnknownError(Exception):
    """The text does something that is not known here."""


class Arithmetic:
    """Computes expressions of a file, given what some names, and attributes as they are written, stand for."""

    def __init__(self, draft: Draft, known: Mapping[str, Value], small: Mapping[float, float] | None = None) -> None:
        """`small`: what stands for a number in the text that is smaller: of one of 1e-12 nothing would be seen."""
        self._draft = draft
        self._known = dict(known)
        self._small = dict(small or {})
        self._own: set[str] = set()  # names that were bound here

    def run(self, statement: cst.BaseSmallStatement) -> None:
        """Bind what an assignment binds. Raises UnknownError for any other statement."""
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            self._bind(statement.targets[0].target, self.value(statement.value), statement.value)
        elif isinstance(statement, cst.AugAssign) and isinstance(statement.target, cst.Name):
            name, change = statement.target.value, _AUGMENTED.get(type(statement.operator))
            if change is None or name not in self._own:
                raise UnknownError  # in place, and somebody else's
            other = self.value(statement.value)
            self._known[name] = _refusing(lambda: change(self._known[name], other))
        else:
            raise UnknownError

    def value(self, node: cst.BaseExpression) -> Value:
        """What an expression gives. Raises UnknownError."""
        return _refusing(lambda: self._value(node))

    def _bind(self, target: cst.BaseExpression, value: Value, given: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple) and isinstance(value, tuple) and len(value) == len(target.elements):
            sources = [each.value for each in given.elements] if isinstance(given, (cst.Tuple, cst.List)) else [given]
            sources *= len(value) // len(sources)
            for element, each, source in zip(target.elements, value, sources, strict=True):
                self._bind(element.value, each, source)
        elif isinstance(target, cst.Name):
            self._known[target.value] = value
            self._own.discard(target.value)
            if self._is_new(given):
                self._own.add(target.value)
            else:  # what it was bound to before has another name now, which a change in place reaches as well
                self._own -= {each.value for each in self._draft.nodes(cst.Name, given)}
        else:
            raise UnknownError

    def _is_new(self, node: cst.BaseExpression) -> bool:
        """Whether an expression gives memory of its own: no name's, and no view of one."""
        if isinstance(node, cst.Call):
            full = full_name(self._draft, node.func)
            name = node.func.attr.value if isinstance(node.func, cst.Attribute) else full.rpartition(".")[2]
            return name in _METHODS and name not in _SHAPES
        return isinstance(node, cst.BinaryOperation)

    def _value(self, node: cst.BaseExpression) -> Value:
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._named(node)
        if isinstance(node, (cst.Integer, cst.Float)):
            number = ast.literal_eval(node.value)
            return next((other for below, other in self._small.items() if 0.0 < number < below), number)
        if isinstance(node, cst.BinaryOperation) and type(node.operator) in _BINARY:
            return _BINARY[type(node.operator)](self._value(node.left), self._value(node.right))
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            return -self._value(node.expression)
        if isinstance(node, (cst.Tuple, cst.List)):
            return tuple(self._value(each.value) for each in node.elements)
        if isinstance(node, cst.Subscript):
            return self._value(node.value)[self._index(node)]
        if isinstance(node, cst.Call) and not any(each.star for each in node.args):
            return self._call(node)
        raise UnknownError

    def _named(self, node: cst.Name | cst.Attribute) -> Value:
        name = plain_name(node)
        if name in self._known:
            return self._known[name]
        full = full_name(self._draft, node)
        if full in _CONSTANTS:
            return _CONSTANTS[full]
        if isinstance(node, cst.Attribute) and node.attr.value == "shape":
            return self._value(node.value).shape
        if isinstance(node, cst.Attribute) and node.attr.value == "values":
            largest = self._value(node.value)
            if isinstance(largest, tuple) and len(largest) == 2:  # of max(dim)
                return largest[0]
        raise UnknownError

    def _index(self, node: cst.Subscript) -> Any:
        indices: list[Any] = []
        for each in node.slice:
            if isinstance(each.slice, cst.Index):
                inner = each.slice.value
                none, rest = isinstance(inner, cst.Name) and inner.value == "None", isinstance(inner, cst.Ellipsis)
                indices.append(None if none else ... if rest else self._value(inner))
            elif self._draft.code(each.slice).strip() == ":":
                indices.append(slice(None))
            else:
                raise UnknownError
        return tuple(indices) if len(indices) > 1 else indices[0]

    def _call(self, call: cst.Call) -> Value:
        full = full_name(self._draft, call.func)
        if full in _NUMBERS and len(call.args) == 1:
            return _NUMBERS[full](self._value(call.args[0].value))
        if full == "torch.tensor" and len(call.args) == 1:
            number = self._value(call.args[0].value)
            if isinstance(number, (int, float)):
                return number
        module, _, name = full.rpartition(".")
        if name in _METHODS and module in ("torch", "torch.nn.functional"):
            if not call.args or call.args[0].keyword is not None:
                raise UnknownError
            return self._method(name, self._value(call.args[0].value), call.with_changes(args=call.args[1:]))
        if isinstance(call.func, cst.Attribute) and module not in MODULES and call.func.attr.value in _METHODS:
            return self._method(call.func.attr.value, self._value(call.func.value), call)
        raise UnknownError

    def _method(self, name: str, x: Value, call: cst.Call) -> Value:
        if name in _ELEMENTWISE:
            if call.args:
                raise UnknownError
            return _ELEMENTWISE[name](x)
        if name in _OF_TWO:
            (other,) = call.args
            if other.keyword is not None:
                raise UnknownError
            return _OF_TWO[name](x, self._value(other.value))
        if name in ("size", "unsqueeze"):
            given = tuple(self._value(each.value) for each in call.args)
            if name == "unsqueeze":
                return np.expand_dims(x, given[0])
            return x.shape[given[0]] if given else x.shape
        if name == "expand_as":
            return np.broadcast_to(x, self._value(call.args[0].value).shape)
        if name in ("view", "reshape"):
            sizes = tuple(self._value(each.value) for each in call.args)
            return np.reshape(x, sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes)
        return self._reduced(name, x, call)

    def _reduced(self, name: str, x: Value, call: cst.Call) -> Value:
        """What is left of `x`: ``x.mean(-1, keepdim=True)``."""
        if any(each.keyword is not None and each.keyword.value not in _KEYWORDS for each in call.args):
            raise UnknownError
        places = ("dim", "unbiased", "keepdim") if name in SPREADS else ("dim", "keepdim")
        along = argument(call, "dim", places) or argument(call, "axis")
        keep = argument(call, "keepdim", places) or argument(call, "keepdims")
        if along is None:
            raise UnknownError  # of all numbers of a batch
        axis, kept = self._value(along.value), keep is not None and _truth(keep.value)
        if name in SPREADS:
            unbiased, correction = argument(call, "unbiased", places), argument(call, "correction")
            freedom = int(unbiased is None or _truth(unbiased.value))
            freedom = freedom if correction is None else self._value(correction.value)
            if np.size(x) // np.size(np.mean(x, axis=axis)) <= freedom:
                raise UnknownError  # of one number
            found = np.var(x, axis=axis, ddof=freedom, keepdims=kept)
            if name == "var_mean":
                return found, np.mean(x, axis=axis, keepdims=kept)
            return np.sqrt(found) if name == "std" else found
        largest = _REDUCED[name](x, axis=axis, keepdims=kept)
        return (largest, None) if name == "max" else largest


MODULES = ("torch", "torch.nn.functional", "math", "numpy")


def _refusing(compute: Callable[[], Value]) -> Value:
    """What `compute` gives. Raises UnknownError where it fails: shapes that do not fit, say."""
    try:
        with np.errstate(all="ignore"):
            return compute()
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise UnknownError from error


def _truth(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return node.value == "True"
    raise UnknownError
