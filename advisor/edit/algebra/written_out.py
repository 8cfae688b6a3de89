"""Norms and activations that a script writes out, and for which torch has one function: known by what they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
import numpy as np

from advisor.edit.algebra.arithmetic import MODULES, SPREADS, Arithmetic, UnknownError, Value
from advisor.edit.algebra.formulas import (
    EPSILON,
    FUNCTIONAL,
    PROBES,
    RANKS,
    Compute,
    Epsilon,
    Form,
    Shape,
    activations,
    elementwise_or_shares,
    norms,
)
from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import is_in_place, written_in_place
from advisor.edit.names import (
    add_import,
    full_name,
    imported_as,
    is_docstring,
    last_part,
    name_for,
    own_attribute,
    plain_name,
)
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    imports,
    is_bound_elsewhere,
    is_parameter,
    parameter_names,
    parse_number,
    self_assignments,
    variables,
)

Uses = Collection[tuple[Shape, ...]]
"""For each kind of call of a function the shapes of all operands that its operators had."""

_SMALL = 0.01  # an epsilon that is written as a number
_LEAST_OPERATIONS = 2
_MOST_GIVEN, _MOST_OTHERS = 4, 3  # parameters; weight, bias and epsilon
_PLAIN = ("staticmethod", "classmethod")  # decorators
# What Python's operators are in a trace, and torch's functions of which one is in each activation.
_BINARY = {cst.Add: "add", cst.Subtract: "sub", cst.Multiply: "mul", cst.Divide: "div", cst.Power: "pow"}
_MARKS = ("sigmoid", "tanh", "erf", "exp")


@dataclass(frozen=True)
class WrittenOut:
    """``kind`` (``"layer_norm"``) is written out: its ``node`` may be ``code``, and the ``statements`` above it may go.

    ``operators``: the trace's names of its operations, in order; empty where its function does nothing else.
    ``spread``: by ``var`` or ``std``.
    """

    kind: str
    node: cst.BaseExpression
    code: str
    statements: tuple[Statement, ...] = ()
    operators: tuple[str, ...] = ()
    spread: bool = False


def written_out(draft: Draft, line: int, uses: Uses) -> list[WrittenOut]:
    """What the function that begins at `line` (decorators included) writes out, called as it was in a run."""
    function = next((each for each in draft.nodes(cst.FunctionDef) if draft.function_line(each.body) == line), None)
    if function is None or _is_special(function):
        return []
    whole = _whole(draft, function, uses)
    return [whole] if whole is not None else _parts(draft, function)


def call_instead(draft: Draft, found: WrittenOut, others: Iterable[Draft] = ()) -> str:
    """Have torch's function be called; why not, if not: then nothing is to be done with the draft.

    `others` are files whose functions may call it.
    """
    if not found.operators and any(_writes_behind(draft, found, each) for each in (draft, *others)):
        return "what it is given, or gives, may be written to in place, and torch's own keeps that"
    dotted = next(each for each in ("torch.softmax", FUNCTIONAL) if found.code.startswith(each))
    names = [each for each in (name_for(draft, dotted), dotted) if each is not None and not _hidden(draft, found, each)]
    if not names:
        return "what is called torch there is something else"
    if names[0] == dotted and imported_as(draft, "torch") != "torch":
        add_import(draft, "import torch")
    code = names[0] + found.code.removeprefix(dotted)
    draft.replace(found.node, f"({code})" if found.node.lpar else code)
    for each in found.statements:
        draft.remove(each)
    return ""


def _hidden(draft: Draft, found: WrittenOut, dotted: str) -> bool:
    """Whether the first part of a name is something else where the call goes."""
    first = dotted.partition(".")[0]
    scopes = [each for each in draft.ancestors(found.node) if isinstance(each, (cst.FunctionDef, cst.Lambda))]
    if any(is_parameter(each, first) or imports(draft, first, each) for each in scopes):
        return True
    imported = sum(each.evaluated_alias == first for each in draft.nodes(cst.ImportAlias))  # is bound by that, too
    return sum(1 for each in (*scopes, draft.module) for _ in assignments(draft, first, each)) > imported


def _is_special(function: cst.FunctionDef) -> bool:
    """Whether it is compiled from its text, or a part of the script's own backward."""
    named = [each.name.value for each in function.params.params]
    plain = all(isinstance(each.decorator, cst.Name) and each.decorator.value in _PLAIN for each in function.decorators)
    return not plain or "ctx" in named


def _writes_behind(draft: Draft, found: WrittenOut, calling: Draft) -> bool:
    """Whether some function writes in place to what it has given to this one, ``x += f(x)``, or had, ``y *= mask``.

    torch's own functions keep what they are given, or what they gave, for the backward. A method is called as part of a
    module, which may be part of others in turn: whatever is called of ``self``, or by a name that a method binds.
    """
    called = draft.function(found.node)
    method, name = draft.enclosing_class(found.node) is not None, called.name.value if called is not None else ""
    for function in calling.nodes(cst.FunctionDef):
        written = _written(calling, function)
        for call in calling.nodes(cst.Call, function.body):
            own = _may_be_module(calling, function, call) if method else last_part(call.func) == name
            above = calling.parent(call)
            if own and isinstance(above, cst.Attribute) and is_in_place(above.attr.value):
                return True
            targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else []
            if own and not written.isdisjoint(map(last_part, (*targets, *(each.value for each in call.args)))):
                return True
    return False


def _may_be_module(draft: Draft, function: cst.FunctionDef, call: cst.Call) -> bool:
    """Whether a call of a function's may be one of a module: of something that ``self`` has, or a method's own name."""
    if own_attribute(call.func):
        return True
    in_class = draft.enclosing_class(function) is not None and isinstance(call.func, cst.Name)
    return in_class and bool(list(assignments(draft, last_part(call.func), function)))


def _written(draft: Draft, function: cst.FunctionDef) -> set[str]:
    """The names of tensors, or of numbers, that a function writes to in place; but for what counts: ``n += 1``."""
    counts = {
        each.target
        for each in draft.nodes(cst.AugAssign, function.body)
        if isinstance(each.operator, cst.AddAssign) and isinstance(each.value, cst.Integer)
    }
    written = (each for each in written_in_place(draft, function.body) if each not in counts)
    return {each.value for each in written if isinstance(each, cst.Name)}


# All that a function does ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """A function of assignments and one return: what may be its tensor, and what it reads beside.

    ``constants``: numbers of the module that it reads. ``numbers``: values of what else is a number; None for one that
    may be given another. ``epsilon``: the small number that is written in it, or None for several.
    """

    statements: list[cst.SimpleStatementLine]
    returned: cst.BaseExpression
    given: list[str]
    others: list[str]
    constants: dict[str, float]
    numbers: dict[str, float | None]
    epsilon: Epsilon | None


def _whole(draft: Draft, function: cst.FunctionDef, uses: Uses) -> WrittenOut | None:
    body = _body(draft, function)
    ranks = {max(map(len, each), default=0) for each in uses}
    if body is None or len(ranks) != 1 or not ranks <= {*RANKS}:
        return None
    for tensor in body.given:
        others = [each for each in body.others if each != tensor]
        for form in _forms(draft, body, tensor, others, *ranks):
            if all(form.fits(each) for each in uses):
                spread = any(last_part(each.func) in SPREADS for each in draft.nodes(cst.Call, function))
                return WrittenOut(form.kind, body.returned, form.code, tuple(body.statements), spread=spread)
    return None


def _forms(draft: Draft, body: _Body, tensor: str, others: list[str], rank: int) -> Iterator[Form]:
    compute = _computing(draft, body)
    if not others and not body.constants:
        found = elementwise_or_shares(compute, tensor, rank) or []
        # Of other dimensions the same text may sum over others: by the sign of its number only one is meant.
        beside = [elementwise_or_shares(compute, tensor, each) for each in (rank - 1, rank + 1) if each in RANKS[1:]]
        for form in found:
            if all(there is None or form.code in (each.code for each in there) for there in beside):
                yield form
    large = any(value >= _SMALL for value in body.constants.values())
    if body.epsilon is not None and not large and len(others) <= _MOST_OTHERS:
        yield from norms(compute, tensor, others, body.numbers, body.epsilon, rank)


def _computing(draft: Draft, body: _Body) -> Compute:
    constants = {name: EPSILON if 0.0 < each < _SMALL else each for name, each in body.constants.items()}

    def compute(known: Mapping[str, Value]) -> Value:
        arithmetic = Arithmetic(draft, {**constants, **known}, {_SMALL: EPSILON})
        for each in body.statements:
            arithmetic.run(each.body[0])
        return arithmetic.value(body.returned)

    return compute


def _body(draft: Draft, function: cst.FunctionDef) -> _Body | None:
    if not isinstance(function.body, cst.IndentedBlock):
        return None
    lines = list(function.body.body)
    if lines and is_docstring(lines[0]):
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
    names = {each for each in names if variables(draft, each, function.body)}  # no attributes, nor keywords
    own = {each for each in names if any(True for _ in assignments(draft, each, function))}
    constants = _constants(draft, function, names - own - {*given})
    return _Body(
        statements=statements,
        returned=returned.value,
        given=given,
        others=[each for each in (*given, *sorted(atoms)) if each in names | atoms],
        constants=constants,
        numbers={**_given_numbers(draft, function), **_own_numbers(draft, function, atoms)},
        epsilon=_epsilon(draft, function, constants),
    )


def _epsilon(draft: Draft, function: cst.FunctionDef, constants: dict[str, float]) -> Epsilon | None:
    """The one small number of a function; None for several."""
    small = {each.value: each.evaluated_value for each in draft.nodes(cst.Float, function.body)}
    small = {code: value for code, value in {**small, **constants}.items() if 0.0 < value < _SMALL}
    if len(small) > 1:
        return None
    return Epsilon(*next(iter(small.items()))) if small else Epsilon()


def _constants(draft: Draft, function: cst.FunctionDef, names: Iterable[str]) -> dict[str, float]:
    """Numbers of the module that a function reads, and nobody binds anew."""
    if draft.function(function) is not None:
        return {}  # what is around it may have the same names
    values = {name: assigned_once(draft, name, draft.module) for name in names if not is_bound_elsewhere(draft, name)}
    numbers = {name: parse_number(value) for name, value in values.items() if value is not None}
    return {name: number for name, number in numbers.items() if number is not None}


def _given_numbers(draft: Draft, function: cst.FunctionDef) -> dict[str, float | None]:
    """Those parameters whose default is a number."""
    found = {}
    for each in function.params.params:
        number = parse_number(each.default) if each.default is not None else None
        if number is not None:
            told = _told(draft, function.name.value, parameter_names(draft, function), each.name.value)
            found[each.name.value] = None if told else number
    return found


def _own_numbers(draft: Draft, function: cst.FunctionDef, atoms: Iterable[str]) -> dict[str, float | None]:
    """Those attributes of ``self`` that are numbers: given one, or a parameter whose default is one."""
    holder, found = draft.enclosing_class(function), dict[str, float | None]()
    if holder is None:
        return found
    for atom in atoms:
        name = atom.removeprefix("self.")
        values = self_assignments(draft, holder, name) or [assigned_once(draft, name, holder)]
        value = values[0] if len(values) == 1 else None
        number = parse_number(value) if value is not None else None
        maker = draft.function(value) if isinstance(value, cst.Name) else None
        if number is not None:
            found[atom] = None if _set_elsewhere(draft, name) else number
        elif maker is not None and isinstance(value, cst.Name):
            default = next((each.default for each in maker.params.params if each.name.value == value.value), None)
            if default is not None and (number := parse_number(default)) is not None:
                told = _told(draft, holder.name.value, parameter_names(draft, maker), value.value)
                found[atom] = None if told or _set_elsewhere(draft, name) else number
    return found


def _told(draft: Draft, callee: str, parameters: list[str], name: str) -> bool:
    """Whether somebody in the file may give a parameter of what is called so another value than its default."""
    for use in variables(draft, callee):
        above = draft.parent(use)
        call = draft.parent(above) if isinstance(above, cst.Arg) else above
        if isinstance(above, (cst.ClassDef, cst.FunctionDef)) and above.name is use:
            continue
        if not isinstance(call, cst.Call) or (call.func is not use and last_part(call.func) != "super"):
            return True  # a base, or another name for it
        if call.func is use and (has_starred(call) or unpacked(call) or argument(call, name, parameters) is not None):
            return True
    return False


def _set_elsewhere(draft: Draft, name: str) -> bool:
    """Whether an attribute of that name is set in several places."""
    targets = [each.target for each in draft.nodes(cst.AssignTarget)]
    return sum(isinstance(each, cst.Attribute) and each.attr.value == name for each in targets) > 1


# Parts of a function ------------------------------------------------------------------------------------------------


def _parts(draft: Draft, function: cst.FunctionDef) -> list[WrittenOut]:
    """Activations of one name, in expressions; none where others of the same operations are beside them."""
    done, found = set[cst.CSTNode](), list[WrittenOut]()
    written = _written(draft, function)
    nodes: list[cst.BaseExpression] = [*draft.nodes(cst.BinaryOperation, function.body)]
    nodes += draft.nodes(cst.Call, function.body)
    for node in sorted(nodes, key=lambda each: len(list(draft.ancestors(each)))):  # what holds others first
        if draft.function(node) is not function or not done.isdisjoint(draft.ancestors(node)):
            continue
        read = _read(draft, node)
        if read is None or len(read) != 1:
            continue
        (name,), above = read, draft.parent(node)
        targets = above.targets if isinstance(above, cst.Assign) else ()
        if name in written or any(last_part(each.target) in written for each in targets):
            continue  # torch's own keeps what it is given for the backward
        try:
            result = Arithmetic(draft, {name: np.array(PROBES)}).value(node)
        except UnknownError:
            continue
        operators = tuple(_operators(draft, node))
        form = next(activations(np.array(PROBES), result, name), None)
        if form is not None and any(each.removeprefix("aten::") in _MARKS for each in operators):
            done.add(node)
            found.append(WrittenOut(form.kind, node, form.code, operators=operators))
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
        inside = [_read(draft, each.value) for each in _operands(draft, node)]
    else:
        return None
    return None if any(each is None for each in inside) else {name for each in inside for name in each or ()}


def _operands(draft: Draft, call: cst.Call) -> list[cst.Arg]:
    """What a function of torch's, or a method of a tensor's, is given, the tensor itself first."""
    method = isinstance(call.func, cst.Attribute) and full_name(draft, call.func.value) not in MODULES
    own = [cst.Arg(call.func.value)] if method and isinstance(call.func, cst.Attribute) else []
    return [*own, *call.args]


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
    elif isinstance(node, cst.Call):
        for each in _operands(draft, node):
            yield from _operators(draft, each.value)
        yield f"aten::{last_part(node.func) if isinstance(node.func, cst.Attribute) else _plain(draft, node.func)}"


def _plain(draft: Draft, node: cst.BaseExpression) -> str:
    """``sigmoid`` of what was imported from torch by itself."""
    return full_name(draft, node).rpartition(".")[2]
