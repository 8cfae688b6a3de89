"""Norms and activations that a script writes out, and for which torch has one function: known by what they give."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import libcst as cst
import numpy as np

from advisor.edit.arithmetic import Arithmetic, UnknownError, Value
from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Statement
from advisor.edit.names import ensure_name, full_name, last_part, name_for, own_attribute, plain_name
from advisor.edit.regions import bound_names
from advisor.edit.scopes import assigned_once, is_bound_elsewhere, parameter_names, self_assignments

FUNCTIONAL = "torch.nn.functional"
Shape = tuple[int, ...]
_SIZES = (6, 3, 4, 5)  # of what is computed to try it: no two dimensions alike
_RANKS = range(1, len(_SIZES) + 1)
_PROBES = (-3.1, -1.2, -0.4, 0.3, 0.9, 2.2)  # what tells activations apart
_CLOSE, _EXACT = 1e-5, 1e-9  # constants are rounded (1.41421 for a root of two); a norm's epsilon may be small
_EPSILON = 0.1  # for one that is a number, whichever
_SMALL = 0.01  # an epsilon that is written as a number
_LARGEST_OUTSIDE = 1e-6  # of an epsilon that is added to the deviation: a larger one gives other numbers
_LEAST_OPERATIONS = 2
_MOST_GIVEN = 4  # parameters
_ROLES = ("weight", "bias", "eps")
_PLAIN = ("staticmethod", "classmethod")  # decorators
_SPREADS = ("var", "std", "var_mean")
# What Python's operators, and torch's functions, are in a trace.
_BINARY = {cst.Add: "add", cst.Subtract: "sub", cst.Multiply: "mul", cst.Divide: "div", cst.Power: "pow"}
_MARKS = ("sigmoid", "tanh", "erf", "exp")


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


def written_out(draft: Draft, line: int, shapes: Collection[Shape]) -> list[WrittenOut]:
    """What the function that begins at `line` (decorators included) writes out.

    `shapes` are those that its operators were given in a run, the largest with as many dimensions as what it computes.
    """
    function = next((each for each in draft.nodes(cst.FunctionDef) if _begins(draft, each) == line), None)
    if function is None or max(map(len, shapes), default=0) not in _RANKS or _is_special(function):
        return []
    whole = _whole(draft, function, line, shapes)
    return [whole] if whole is not None else list(_parts(draft, function, line))


def call_instead(draft: Draft, found: WrittenOut) -> bool:
    """Have torch's function be called; False, and nothing done, where no name of the file reaches it."""
    dotted = next(each for each in ("torch.softmax", FUNCTIONAL) if found.code.startswith(each))
    around = [each for each in draft.ancestors(found.node) if isinstance(each, (cst.FunctionDef, cst.Lambda))]
    bound = {name for each in around for name in bound_names(draft, each)}
    bound |= {each.name.value for function in around for each in draft.nodes(cst.Param, function)}
    targets = [each.target for each in draft.nodes(cst.For, around[-1])]
    targets += [each.target for each in draft.nodes(cst.CompFor, around[-1])]
    bound |= {name.value for target in targets for name in draft.nodes(cst.Name, target)}
    name = name_for(draft, dotted, bound)
    if name is None and "torch" in bound:
        return False
    code = (name or ensure_name(draft, dotted)) + found.code.removeprefix(dotted)
    draft.replace(found.node, f"({code})" if found.node.lpar else code)
    for each in found.statements:
        draft.remove(each)
    return True


def _begins(draft: Draft, function: cst.FunctionDef) -> int:
    return min([draft.line(function), *map(draft.line, function.decorators)])


def _is_special(function: cst.FunctionDef) -> bool:
    """Whether it is compiled from its text, or a part of the script's own backward."""
    named = [each.name.value for each in function.params.params]
    plain = all(isinstance(each.decorator, cst.Name) and each.decorator.value in _PLAIN for each in function.decorators)
    return not plain or "ctx" in named


# All that a function does ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """A function of assignments and one return: what may be its tensor, and the numbers and weights beside.

    ``constants``: numbers of the module that it reads. ``numbers``: values of what else is a number for certain;
    None for one that the text does not tell, or that somebody may give another.
    """

    function: cst.FunctionDef
    statements: list[cst.SimpleStatementLine]
    returned: cst.BaseExpression
    given: list[str]
    atoms: list[str]
    read: set[str]
    constants: dict[str, float]
    numbers: dict[str, float | None]


@dataclass(frozen=True)
class _Form:
    """A call that gives the same. ``axes`` are those that are summed over, none of an activation's.

    ``weighted``: by its own weights, of channels or of the last dimensions.
    """

    kind: str
    code: str
    axes: tuple[int, ...] = ()
    weighted: bool = False
    of_channels: bool = False


def _whole(draft: Draft, function: cst.FunctionDef, line: int, shapes: Collection[Shape]) -> WrittenOut | None:
    body = _body(draft, function)
    if body is None:
        return None
    largest = max(shapes, key=lambda each: (len(each), math.prod(each)))
    rank = len(largest)
    for tensor in body.given:
        others = [each for each in (*body.given, *body.atoms) if each != tensor and each in body.read]
        forms = _forms(draft, body, tensor, others, rank) or []
        # Of other dimensions the same text may sum over others: then as many as there were are not all there are.
        beside = [_forms(draft, body, tensor, others, each) for each in (rank - 1, rank + 1) if each in _RANKS[1:]]
        for form in forms:
            same = all(there is None or form.code in (each.code for each in there) for there in beside)
            if (same or form.kind == "group_norm") and _fits(form, shapes, largest):
                spread = any(_method(each) in _SPREADS for each in draft.nodes(cst.Call, function))
                return WrittenOut(form.kind, line, body.returned, form.code, tuple(body.statements), spread=spread)
    return None


def _fits(form: _Form, shapes: Collection[Shape], largest: Shape) -> bool:
    """Whether the shapes are those of the tensor, of what is left of it, and of the weights that the call takes."""
    if form.of_channels:
        ones = (1,) * (len(largest) - 2)
        weights = {(largest[1], *ones), (1, largest[1], *ones)}
    else:
        weights = {largest[form.axes[0] :]} if form.weighted else set()
    left = tuple(size for axis, size in enumerate(largest) if axis not in form.axes)
    others = {each for each in shapes if each not in ((), largest, left) and not _reduced(each, largest, form.axes)}
    return others <= weights and (not form.weighted or not weights.isdisjoint(shapes))


def _reduced(shape: Shape, largest: Shape, axes: tuple[int, ...]) -> bool:
    """Whether it is what is left of `largest` once it is summed over some of the axes, which are kept."""
    if len(shape) != len(largest) or shape[0] != largest[0]:
        return False
    sizes = enumerate(zip(shape, largest, strict=True))
    return all(left == size or (axis in axes and left == 1) for axis, (left, size) in sizes)


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
    given = [each.name.value for each in function.params.params if each.name.value not in ("self", "cls")]
    if not given or len(given) > _MOST_GIVEN or function.params.star_kwarg or function.params.kwonly_params:
        return None
    atoms = {f"self.{name}" for each in draft.nodes(cst.Attribute, function.body) if (name := own_attribute(each))}
    atoms -= {plain_name(each.func) for each in draft.nodes(cst.Call, function.body)}
    names = {each.value for each in draft.nodes(cst.Name, function.body)}
    defaults = {each.name.value: each.default for each in function.params.params}
    numbers = {name: number for name in given if (number := _literal(defaults.get(name))) is not None}
    return _Body(
        function=function,
        statements=statements,
        returned=returned.value,
        given=given,
        atoms=sorted(atoms),
        read=names | atoms,
        constants=_constants(draft, function, names - set(given)),
        numbers={**numbers, **_own_numbers(draft, function, atoms)},
    )


def _is_text(statement: cst.BaseStatement) -> bool:
    """Whether it is a docstring."""
    inside = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and statement.body else None
    return isinstance(inside, cst.Expr) and isinstance(inside.value, (cst.SimpleString, cst.ConcatenatedString))


def _literal(node: cst.BaseExpression | None) -> float | None:
    return float(ast.literal_eval(node.value)) if isinstance(node, (cst.Float, cst.Integer)) else None


def _constants(draft: Draft, function: cst.FunctionDef, names: Iterable[str]) -> dict[str, float]:
    """Numbers of the module that a function reads, and nobody binds anew."""
    if draft.function(function) is not None:
        return {}  # what is around it may have the same names
    found = {name: _literal(assigned_once(draft, name, draft.module)) for name in names}
    return {name: value for name, value in found.items() if value is not None and not is_bound_elsewhere(draft, name)}


def _own_numbers(draft: Draft, function: cst.FunctionDef, atoms: Iterable[str]) -> dict[str, float | None]:
    """Those attributes of ``self`` that are numbers: given one, or a parameter whose default is one."""
    holder, found = draft.enclosing_class(function), dict[str, float | None]()
    if holder is None:
        return found
    for atom in atoms:
        name = atom.removeprefix("self.")
        values = self_assignments(draft, holder, name) or [assigned_once(draft, name, holder)]
        value = values[0] if len(values) == 1 else None
        if (number := _literal(value)) is not None:
            found[atom] = number
        elif isinstance(value, cst.Name) and (default := _default(draft, value)) is not None:
            found[atom] = None if _told(draft, holder, value) else default
    return found


def _default(draft: Draft, name: cst.Name) -> float | None:
    """The number that a parameter of the function around is without an argument; None for anything else."""
    maker = draft.function(name)
    if maker is None or name.value not in parameter_names(draft, maker):
        return None
    return next((_literal(each.default) for each in maker.params.params if each.name.value == name.value), None)


def _told(draft: Draft, holder: cst.ClassDef, name: cst.Name) -> bool:
    """Whether somebody in the file may give a parameter of the class's another value."""
    maker = draft.function(name)
    at = parameter_names(draft, maker).index(name.value) if maker is not None else 0
    calls = [each for each in draft.nodes(cst.Call) if last_part(each.func) == holder.name.value]
    passed = any(len(each.args) > at or argument(each, name.value) is not None for each in calls)
    return passed or _has_subclass(draft, holder.name.value)


def _has_subclass(draft: Draft, name: str) -> bool:
    return any(last_part(base.value) == name for each in draft.nodes(cst.ClassDef) for base in each.bases)


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _computed(draft: Draft, body: _Body, known: dict[str, Value]) -> Value:
    """What the function returns of these. Raises UnknownError."""
    arithmetic = Arithmetic(draft, {**body.constants, **known})
    for each in body.statements:
        arithmetic.run(each.body[0])
    return arithmetic.value(body.returned)


def _forms(draft: Draft, body: _Body, tensor: str, others: Sequence[str], rank: int) -> list[_Form] | None:
    """What gives what the function gives of `tensor`; None where that cannot be computed, of so many dimensions."""
    if others or body.constants:
        return _norms(draft, body, tensor, others, rank) if len(others) <= len(_ROLES) else None
    x = _tried(rank)
    try:
        result = _computed(draft, body, {tensor: x})
    except UnknownError:
        return None
    found = [_Form(kind, code) for kind, code in _activations(x, result, tensor)]
    return [*found, *_shares(x, result, tensor), *(_norms(draft, body, tensor, others, rank) or [])]


def _tried(rank: int) -> Value:
    x = np.random.default_rng(rank).normal(size=_SIZES[:rank])
    x.reshape(-1)[: len(_PROBES)] = _PROBES
    return x


def _activations(x: Value, result: Value, code: str) -> Iterator[tuple[str, str]]:
    for kind, (function, call) in _FUNCTIONS.items():
        if _same(function(x), result, _CLOSE):
            yield kind, f"{FUNCTIONAL}.{call.format(code)}"


def _shares(x: Value, result: Value, code: str) -> Iterator[_Form]:
    for dim in range(-x.ndim, x.ndim):
        powers = np.exp(x - x.max(axis=dim, keepdims=True))
        if _same(powers / powers.sum(axis=dim, keepdims=True), result, _EXACT):
            yield _Form("softmax", f"torch.softmax({code}, {dim})", (dim % x.ndim,))


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


@dataclass(frozen=True)
class _Tried:
    """A norm's parts as they are tried: names by role, and values by name; how an epsilon is written, and its value."""

    x: Value
    tensor: str
    axes: tuple[int, ...]
    role: dict[str, str]
    known: dict[str, Value]
    epsilon: str
    value: float
    of_channels: bool


def _norms(draft: Draft, body: _Body, tensor: str, others: Sequence[str], rank: int) -> list[_Form] | None:
    """As :func:`_forms`, of norms."""
    x, found, computed = _tried(rank), list[_Form](), False
    literals = [each for line in (*body.statements, body.returned) for each in draft.nodes(cst.Float, line)]
    written = {each.value: value for each in literals if 0.0 < (value := float(ast.literal_eval(each.value))) < _SMALL}
    if len(body.constants) > 1 or (written and body.constants):
        return None  # more than an epsilon: what the others are for is lost
    for axes in [tuple(range(first, x.ndim)) for first in range(1, x.ndim)]:
        for roles in permutations(_ROLES, len(others)):
            role = dict(zip(roles, others, strict=True))
            if "eps" in role:
                epsilons = {role["eps"]: _EPSILON} if role["eps"] in body.numbers else {}
            else:
                epsilons = body.constants or written or {"0.0": 0.0}
            weighted = not {"weight", "bias"}.isdisjoint(role)
            for shape in _weights(x, axes) if weighted else [()]:
                of_channels = len(axes) == x.ndim - 1 and x.ndim > 2
                known: dict[str, Value] = {tensor: x}
                known.update({role[each]: _weight(each, shape) for each in role if each != "eps"})
                known.update({name: value for name, value in epsilons.items() if name in others})
                try:
                    result = _computed(draft, body, known)
                except UnknownError:
                    continue
                computed = True
                for epsilon, value in epsilons.items():
                    tried = _Tried(x, tensor, axes, role, known, epsilon, value, of_channels)
                    code = _norm(body, tried, result)
                    if code:
                        kind = code.split("(")[0].rpartition(".")[2]
                        found.append(_Form(kind, code, axes, weighted, of_channels and weighted))
    return found if computed else None


def _weights(x: Value, axes: tuple[int, ...]) -> list[Shape]:
    """Shapes that a norm's weights may have: over all of a sample those of channels."""
    if len(axes) == x.ndim - 1 and x.ndim > 2:
        channels, ones = x.shape[1], (1,) * (x.ndim - 2)
        return [(channels,), (channels, *ones), (1, channels, *ones)]
    return [tuple(x.shape[each] for each in axes)]


def _weight(role: str, shape: Shape) -> Value:
    return np.random.default_rng(len(role)).uniform(0.5, 1.5, size=shape)


def _norm(body: _Body, tried: _Tried, result: Value) -> str:
    """The call that gives the same; "" where none is known."""
    x, axes, role = tried.x, tried.axes, tried.role
    weight, bias = (tried.known[role[each]] if each in role else None for each in ("weight", "bias"))
    if tried.of_channels:
        weight, bias = (_by_channel(each, x) for each in (weight, bias))
    for outside in (False, True):
        for unbiased in (False, True):
            spread = np.var(x, axis=axes, ddof=int(unbiased), keepdims=True)
            below = np.sqrt(spread) + tried.value if outside else np.sqrt(spread + tried.value)
            normal = (x - x.mean(axis=axes, keepdims=True)) / below
            normal = normal if weight is None else normal * weight
            normal = normal if bias is None else normal + bias
            if not _same(normal, result, _EXACT):
                continue
            epsilon = body.numbers.get(tried.epsilon) if tried.epsilon in body.numbers else tried.value
            if outside and not (epsilon is not None and 0.0 < epsilon <= _LARGEST_OUTSIDE):
                return ""
            if unbiased and (weight is None or tried.of_channels or len(axes) > 1):
                return ""
            return _call(tried, outside, unbiased)
    return ""


def _by_channel(weight: Value | None, x: Value) -> Value | None:
    return None if weight is None else np.reshape(weight, (1, -1, *((1,) * (x.ndim - 2))))


def _call(tried: _Tried, outside: bool, unbiased: bool) -> str:
    x, epsilon = tried.tensor, tried.epsilon
    weight, bias = tried.role.get("weight", "None"), tried.role.get("bias", "None")
    if outside:
        epsilon = f"{epsilon} ** 2"
    if unbiased:  # the deviation of a sample is that of all its values, by this
        weight = f"{weight} * (1 - 1 / {x}.shape[-1]) ** 0.5"
        epsilon = epsilon if outside or not tried.value else f"{epsilon} * (1 - 1 / {x}.shape[-1])"
    if tried.of_channels:
        weight, bias = (each if each == "None" else f"{each}.flatten()" for each in (weight, bias))
        rest = f"eps={epsilon}" if weight == bias == "None" else f"{weight}, {bias}, {epsilon}"
        return f"{FUNCTIONAL}.group_norm({x}, 1, {rest})"
    rest = f"eps={epsilon}" if weight == bias == "None" else f"{weight}, {bias}, {epsilon}"
    return f"{FUNCTIONAL}.layer_norm({x}, {x}.shape[-{len(tried.axes)}:], {rest})"


# Parts of a function ------------------------------------------------------------------------------------------------


def _parts(draft: Draft, function: cst.FunctionDef, line: int) -> list[WrittenOut]:
    """Activations of one name, in expressions; none where others of the same operations are beside them."""
    done, found = list[cst.CSTNode](), list[WrittenOut]()
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
            found.append(WrittenOut(kind, line, node, code, operators=tuple(_operators(draft, node))))
            break
    called = Counter(last_part(each.func) for each in draft.nodes(cst.Call, function.body))
    own = Counter(last_part(call.func) for each in found for call in draft.nodes(cst.Call, each.node))
    return found if all(called[each] == own[each] for each in _MARKS if own[each]) else []


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
