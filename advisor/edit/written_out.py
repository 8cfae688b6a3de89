"""Norms and activations that a script writes out, and for which torch has one function: known by what they give."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import libcst as cst
import numpy as np

from advisor.edit.arithmetic import Arithmetic, UnknownError, Value
from advisor.edit.draft import Draft, Statement
from advisor.edit.names import ensure_name, full_name, own_attribute, plain_name
from advisor.edit.scopes import assigned_once

FUNCTIONAL = "torch.nn.functional"
_SIZES = (2, 3, 4, 5)  # of what a norm is tried with: no two dimensions alike
_RANKS = range(1, len(_SIZES) + 1)
_PROBES = (-3.1, -1.2, -0.4, 0.3, 0.9, 2.2)  # what an activation is tried with
_CLOSE, _EXACT = 1e-5, 1e-9  # constants are rounded (1.41421 for a root of two); a norm's epsilon may be small
_EPSILON = 0.1  # for one whose value the text does not tell
_LARGEST_OUTSIDE = 1e-5  # of an epsilon that is added to the deviation: a larger one gives other numbers
_LEAST_OPERATIONS = 2
_ROLES = ("weight", "bias", "eps")
# What Python's operators, and torch's functions, are in a trace.
_BINARY = {cst.Add: "add", cst.Subtract: "sub", cst.Multiply: "mul", cst.Divide: "div", cst.Power: "pow"}


@dataclass(frozen=True)
class WrittenOut:
    """``kind`` (``"layer_norm"``) is written out: its ``node`` may be ``code``, and the ``statements`` above it may go.

    ``operators``: the trace's names of its operations, in order; empty where the function, which begins at
    ``function``, does nothing else. ``spread``: by ``var`` or ``std``.
    """

    kind: str
    function: int
    node: cst.BaseExpression
    code: str
    statements: tuple[Statement, ...] = ()
    operators: tuple[str, ...] = ()
    spread: bool = False


def written_out(draft: Draft, line: int, rank: int) -> list[WrittenOut]:
    """What the function that begins at `line` (decorators included) writes out of tensors of `rank` dimensions."""
    function = next((each for each in draft.nodes(cst.FunctionDef) if _begins(draft, each) == line), None)
    if function is None or rank not in _RANKS or _is_special(function):
        return []
    whole = _whole(draft, function, line, rank)
    return [whole] if whole is not None else list(_parts(draft, function, line))


def call_instead(draft: Draft, found: WrittenOut) -> None:
    """Have torch's function be called."""
    name = next(each for each in ("torch.softmax", FUNCTIONAL) if found.code.startswith(each))
    draft.replace(found.node, ensure_name(draft, name) + found.code.removeprefix(name))
    for each in found.statements:
        draft.remove(each)


def _begins(draft: Draft, function: cst.FunctionDef) -> int:
    return min([draft.line(function), *map(draft.line, function.decorators)])


def _is_special(function: cst.FunctionDef) -> bool:
    """Whether it is compiled from its text, or a part of the script's own backward."""
    named = [each.name.value for each in function.params.params]
    plain = all(isinstance(each.decorator, cst.Name) and each.decorator.value in _PLAIN for each in function.decorators)
    return not plain or "ctx" in named


_PLAIN = ("staticmethod", "classmethod")


# All that a function does ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """A function of assignments and one return: what may be its tensor, and the numbers and weights beside."""

    statements: list[cst.SimpleStatementLine]
    returned: cst.BaseExpression
    given: list[str]
    atoms: list[str]
    read: set[str]
    constants: dict[str, float]


def _whole(draft: Draft, function: cst.FunctionDef, line: int, rank: int) -> WrittenOut | None:
    body = _body(draft, function)
    if body is None:
        return None
    for tensor in body.given:
        others = [each for each in (*body.given, *body.atoms) if each != tensor and each in body.read]
        for kind, code in _matches(draft, body, tensor, others, rank):
            spread = any(_method(each) in ("var", "std", "var_mean") for each in draft.nodes(cst.Call, function))
            return WrittenOut(kind, line, body.returned, code, tuple(body.statements), spread=spread)
    return None


def _body(draft: Draft, function: cst.FunctionDef) -> _Body | None:
    if not isinstance(function.body, cst.IndentedBlock):
        return None
    lines = list(function.body.body)
    if lines and _is_text(lines[0]):
        del lines[0]
    if not lines or not all(isinstance(each, cst.SimpleStatementLine) and len(each.body) == 1 for each in lines):
        return None
    *statements, last = [cst.ensure_type(each, cst.SimpleStatementLine) for each in lines]
    returned = last.body[0]
    if not isinstance(returned, cst.Return) or returned.value is None:
        return None
    if sum(len(draft.nodes(kind, function)) for kind in (cst.BinaryOperation, cst.Call)) < _LEAST_OPERATIONS:
        return None
    parameters = [each.name.value for each in function.params.params]
    given = [each for each in parameters if each not in ("self", "cls")]
    if not given or len(given) > _MOST_GIVEN or function.params.star_kwarg or function.params.kwonly_params:
        return None
    atoms = {f"self.{name}" for each in draft.nodes(cst.Attribute, function.body) if (name := own_attribute(each))}
    called = {plain_name(each.func) for each in draft.nodes(cst.Call, function.body)}
    atoms -= called
    read = {each.value for each in draft.nodes(cst.Name, function.body)} | atoms
    return _Body(statements, returned.value, given, sorted(atoms), read, _constants(draft, function))


_MOST_GIVEN = 4


def _is_text(statement: cst.BaseStatement) -> bool:
    """Whether it is a docstring."""
    inside = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and statement.body else None
    return isinstance(inside, cst.Expr) and isinstance(inside.value, (cst.SimpleString, cst.ConcatenatedString))


def _constants(draft: Draft, function: cst.FunctionDef) -> dict[str, float]:
    """Numbers of the module that a function reads."""
    found = {}
    for name in {each.value for each in draft.nodes(cst.Name, function.body)}:
        value = assigned_once(draft, name, draft.module)
        if isinstance(value, (cst.Float, cst.Integer)):
            found[name] = float(ast.literal_eval(value.value))
    return found


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _computed(draft: Draft, body: _Body, known: dict[str, Value]) -> Value:
    """What the function returns of these. Raises UnknownError."""
    arithmetic = Arithmetic(draft, {**body.constants, **known})
    for each in body.statements:
        arithmetic.run(each.body[0])
    return arithmetic.value(body.returned)


def _matches(draft: Draft, body: _Body, tensor: str, others: Sequence[str], rank: int) -> Iterator[tuple[str, str]]:
    """Kind and code of what the function gives of `tensor`."""
    x = np.random.default_rng(0).normal(size=_SIZES[:rank])
    if not others:
        try:
            result = _computed(draft, body, {tensor: x})
        except UnknownError:
            return
        yield from _activations(x, result, tensor)
        yield from _shares(x, result, tensor)
    if len(others) <= len(_ROLES):
        yield from _norms(draft, body, tensor, others, x)


def _activations(x: Value, result: Value, code: str) -> Iterator[tuple[str, str]]:
    for kind, (function, call) in _FUNCTIONS.items():
        if _same(function(x), result, _CLOSE):
            yield kind, f"{FUNCTIONAL}.{call.format(code)}"


def _shares(x: Value, result: Value, code: str) -> Iterator[tuple[str, str]]:
    for dim in (-1, *range(x.ndim - 1)):
        powers = np.exp(x - x.max(axis=dim, keepdims=True))
        if _same(powers / powers.sum(axis=dim, keepdims=True), result, _EXACT):
            yield "softmax", f"torch.softmax({code}, {dim})"


def _same(one: Value, other: Value, tolerance: float) -> bool:
    return isinstance(other, np.ndarray) and one.shape == other.shape and bool(np.allclose(one, other, 0.0, tolerance))


_erf = np.vectorize(math.erf, otypes=[float])
_FUNCTIONS: dict[str, tuple[Callable[[Value], Value], str]] = {
    "gelu": (lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))), "gelu({})"),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
        'gelu({}, approximate="tanh")',
    ),
    "silu": (lambda x: x / (1.0 + np.exp(-x)), "silu({})"),
}


# Norms ------------------------------------------------------------------------------------------------------------


def _norms(draft: Draft, body: _Body, tensor: str, others: Sequence[str], x: Value) -> Iterator[tuple[str, str]]:
    literals = [ast.literal_eval(each.value) for line in body.statements for each in draft.nodes(cst.Float, line)]
    literals += [ast.literal_eval(each.value) for each in draft.nodes(cst.Float, body.returned)]
    written = {f"{each!r}": each for each in literals if 0.0 < each < 0.01}
    written.update({name: value for name, value in body.constants.items() if 0.0 < value < 0.01})
    for axes in [tuple(range(first, x.ndim)) for first in range(1, x.ndim)]:
        for roles in permutations(_ROLES, len(others)):
            role = dict(zip(roles, others, strict=True))
            epsilons = {role["eps"]: _EPSILON} if "eps" in role else written or {"0.0": 0.0}
            for shape in _weights(x, axes) if len(role) > len({"eps"} & set(role)) else [()]:
                known: dict[str, Value] = {tensor: x}
                known.update({role[each]: _weight(each, shape) for each in role if each != "eps"})
                known.update({name: value for name, value in epsilons.items() if name in others})
                try:
                    result = _computed(draft, body, known)
                except UnknownError:
                    continue
                for epsilon, value in epsilons.items():
                    code = _norm(draft, body, x, axes, (known, role, tensor, epsilon, value), result, shape)
                    if code:
                        yield code.split("(")[0].rpartition(".")[2], code


def _weights(x: Value, axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes that a norm's weights may have: over all of a sample those of channels."""
    if len(axes) == x.ndim - 1 and x.ndim > 2:
        channels, ones = x.shape[1], (1,) * (x.ndim - 2)
        return [(channels,), (channels, *ones), (1, channels, *ones)]
    return [tuple(x.shape[each] for each in axes)]


def _weight(role: str, shape: tuple[int, ...]) -> Value:
    return np.random.default_rng(len(role)).uniform(0.5, 1.5, size=shape)


def _norm(
    draft: Draft,
    body: _Body,
    x: Value,
    axes: tuple[int, ...],
    given: tuple[dict[str, Value], dict[str, str], str, str, float],
    result: Value,
    shape: tuple[int, ...],
) -> str:
    """The call that gives the same; "" where none is known."""
    known, role, tensor, epsilon, value = given
    weight, bias = (known[role[each]] if each in role else None for each in ("weight", "bias"))
    of_channels = bool(shape) and shape != tuple(x.shape[each] for each in axes)
    if of_channels:
        weight, bias = (_by_channel(each, x) for each in (weight, bias))
    for outside in (False, True):
        for unbiased in (False, True):
            spread = np.var(x, axis=axes, ddof=int(unbiased), keepdims=True)
            below = np.sqrt(spread) + value if outside else np.sqrt(spread + value)
            normal = (x - x.mean(axis=axes, keepdims=True)) / below
            normal = normal if weight is None else normal * weight
            normal = normal if bias is None else normal + bias
            if not _same(normal, result, _EXACT):
                continue
            if outside and not 0.0 < _told(draft, body, epsilon, value) <= _LARGEST_OUTSIDE:
                return ""
            if unbiased and (weight is None or of_channels or len(axes) > 1):
                return ""
            return _call(tensor, axes, role, f"{epsilon} ** 2" if outside else epsilon, of_channels, unbiased)
    return ""


def _by_channel(weight: Value | None, x: Value) -> Value | None:
    return None if weight is None else np.reshape(weight, (1, -1, *((1,) * (x.ndim - 2))))


def _told(draft: Draft, body: _Body, epsilon: str, value: float) -> float:
    """An epsilon's value: of an attribute the default of the parameter that it is; 0 where that is not told."""
    if value != _EPSILON:
        return value
    name, holder = epsilon.removeprefix("self."), draft.enclosing_class(body.returned)
    for each in draft.nodes(cst.Param, holder) if holder is not None and name != epsilon else ():
        if each.name.value == name and isinstance(each.default, cst.Float):
            return float(ast.literal_eval(each.default.value))
    return 0.0


def _call(
    tensor: str, axes: tuple[int, ...], role: dict[str, str], epsilon: str, of_channels: bool, unbiased: bool
) -> str:
    weight, bias = role.get("weight", "None"), role.get("bias", "None")
    if unbiased:
        weight = f"{weight} * (1 - 1 / {tensor}.shape[-1]) ** 0.5"  # of the deviation of a sample
    if of_channels:
        weight, bias = (each if each == "None" else f"{each}.flatten()" for each in (weight, bias))
        return f"{FUNCTIONAL}.group_norm({tensor}, 1, {weight}, {bias}, {epsilon})"
    rest = f"eps={epsilon}" if weight == bias == "None" else f"{weight}, {bias}, {epsilon}"
    return f"{FUNCTIONAL}.layer_norm({tensor}, {tensor}.shape[-{len(axes)}:], {rest})"


# Parts of a function ------------------------------------------------------------------------------------------------


def _parts(draft: Draft, function: cst.FunctionDef, line: int) -> Iterator[WrittenOut]:
    """Activations of one name, in expressions."""
    done: list[cst.CSTNode] = []
    x = np.array(_PROBES)
    nodes = [*draft.nodes(cst.BinaryOperation, function.body), *draft.nodes(cst.Call, function.body)]
    for node in sorted(nodes, key=lambda each: len(list(draft.ancestors(each)))):  # what holds others first
        if draft.function(node) is not function or any(above in done for above in draft.ancestors(node)):
            continue
        read = _read(draft, node)
        if read is None or len(read) != 1:
            continue
        (name,) = read
        try:
            result = Arithmetic(draft, {name: x}).value(node)
        except UnknownError:
            continue
        for kind, code in _activations(x, result, name):
            done.append(node)
            yield WrittenOut(kind, line, node, code, operators=tuple(_operators(draft, node)))
            break


def _read(draft: Draft, node: cst.BaseExpression) -> set[str] | None:
    """The names that an expression reads, as they are written; None where it does something that is not known."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return set()
    if isinstance(node, (cst.Name, cst.Attribute)):
        full = full_name(draft, node)
        if full.endswith(".pi"):
            return set()
        return {name} if (name := plain_name(node)) and not full.startswith("torch.") else None
    if isinstance(node, cst.UnaryOperation):
        return _read(draft, node.expression)
    if isinstance(node, cst.BinaryOperation):
        inside = [_read(draft, node.left), _read(draft, node.right)]
    elif isinstance(node, cst.Call):
        inside = [_read(draft, each.value) for each in node.args]
        if isinstance(node.func, cst.Attribute) and full_name(draft, node.func.value) not in _MODULES:
            inside.append(_read(draft, node.func.value))
    else:
        return None
    return None if any(each is None for each in inside) else {name for each in inside for name in each or ()}


_MODULES = ("torch", FUNCTIONAL, "math", "numpy")


def _operators(draft: Draft, node: cst.BaseExpression) -> Iterator[str]:
    """The trace's names of what an expression does with tensors, in order."""
    if not _read(draft, node):
        return
    if isinstance(node, cst.UnaryOperation):
        yield from _operators(draft, node.expression)
        yield "aten::neg"
    elif isinstance(node, cst.BinaryOperation):
        yield from _operators(draft, node.left)
        yield from _operators(draft, node.right)
        number = not _read(draft, node.left)
        if number and isinstance(node.operator, cst.Divide):
            yield from ("aten::reciprocal", "aten::mul")
        elif number and isinstance(node.operator, cst.Subtract):
            yield "aten::rsub"
        else:
            yield f"aten::{_BINARY.get(type(node.operator), '')}"
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if full_name(draft, node.func.value) not in _MODULES:
            yield from _operators(draft, node.func.value)
        for each in node.args:
            yield from _operators(draft, each.value)
        yield f"aten::{node.func.attr.value}"
