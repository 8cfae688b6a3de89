"""``torch.autograd.grad(u, x)`` and ``torch.autograd.grad(u, t)`` of one block become one call for both inputs.

Asked for by itself, or by a small function of the file's: ``def gradient(y, x): return torch.autograd.grad(…)[0]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import written_in_place
from advisor.edit.names import fresh_name, full_name
from advisor.edit.scopes import is_bound_elsewhere, is_literal

_GRAD = "torch.autograd.grad"
_PARAMETERS = (
    *("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "allow_unused", "is_grads_batched"),
    "materialize_grads",
)
# A name of its own: no attribute, and none that is called or has attributes.
_OWN_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\s*[(.\w])")
_PLAIN = m.Name() | m.Attribute()
_FIRST = m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=m.Integer("0")))])


@dataclass(frozen=True)
class _Asked:
    """One gradient: the expression that has it, what is asked of what, and how else the function is called."""

    whole: cst.BaseExpression
    function: str
    outputs: str
    inputs: str
    others: tuple[tuple[str, str], ...]

    @property
    def alike(self) -> tuple[object, ...]:
        """The same of those that one call can answer."""
        return self.outputs, tuple(each for each in self.others if each[0] != "retain_graph")

    @property
    def keeps(self) -> bool:
        """Whether it says that the graph is kept."""
        return dict(self.others).get("retain_graph") == "True"


@dataclass(frozen=True)
class Gradients:
    """Gradients of one thing by different inputs, in the order in which a block asks for them."""

    asked: tuple[_Asked, ...]
    statements: tuple[cst.SimpleStatementLine, ...]

    def __len__(self) -> int:
        return len(self.asked)


def separate_gradients(draft: Draft) -> list[Gradients]:
    """All there are in a file that one call could answer."""
    found = []
    blocks: list[cst.Module | cst.IndentedBlock] = [draft.module, *draft.nodes(cst.IndentedBlock)]
    for block in blocks:
        by_key: dict[tuple[object, ...], list[tuple[_Asked, cst.SimpleStatementLine]]] = {}
        for statement in block.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for each in _asked_in(draft, statement):
                    by_key.setdefault(each.alike, []).append((each, statement))
        for there in by_key.values():
            asked, statements = tuple(each for each, _ in there), tuple(each for _, each in there)
            if len({one.inputs for one in asked}) == len(asked) > 1 and _stays(draft, asked, statements):
                found.append(Gradients(asked, statements))
    return found


def ask_once(draft: Draft, found: Gradients) -> None:
    """Have one call give them all, in front of the first."""
    # What is asked for in between may need the graph that the last one frees: one that keeps it says how to call.
    as_this = next((each for each in found.asked if each.keeps), found.asked[-1])
    inputs = ", ".join(each.inputs for each in found.asked)
    others = "".join(f", {name}={code}" for name, code in as_this.others)
    call = f"{as_this.function}({as_this.outputs}, ({inputs}){others})"
    names = [_target(draft, each, statement) for each, statement in zip(found.asked, found.statements, strict=True)]
    first = found.statements[0]
    if all(names) and not _mentioned(draft, found, set(names)):
        assign = cst.ensure_type(first.body[0], cst.Assign)
        draft.replace(assign.targets[0].target, ", ".join(names))
        draft.replace(assign.value, call)
        for statement in found.statements[1:]:
            draft.remove(statement, comments=False)
        return
    fresh: list[str] = []
    for each in found.asked:
        fresh.append(fresh_name(draft, f"{_short(each.outputs)}_{_short(each.inputs)}", fresh))
    draft.insert_before(first, f"{', '.join(fresh)} = {call}")
    for each, name in zip(found.asked, fresh, strict=True):
        draft.replace(each.whole, name)


def _short(code: str) -> str:
    return code.rpartition(".")[2]


def _target(draft: Draft, asked: _Asked, statement: cst.SimpleStatementLine) -> str:
    """The name that a statement gives the gradient, where it does nothing else; ""."""
    if len(statement.body) != 1 or not isinstance(statement.body[0], cst.Assign):
        return ""
    assign = statement.body[0]
    alone = len(assign.targets) == 1 and assign.value is asked.whole
    target: cst.BaseExpression = assign.targets[0].target
    if alone and isinstance(target, cst.Tuple) and len(target.elements) == 1:
        target = target.elements[0].value
    return target.value if alone and isinstance(target, cst.Name) else ""


def _mentioned(draft: Draft, found: Gradients, names: set[str]) -> bool:
    """Whether what stands between the statements knows the names that are bound sooner then."""
    if len(names) != len(found.asked):
        return True
    siblings = draft.siblings(found.statements[0])
    stretch = siblings[siblings.index(found.statements[0]) : siblings.index(found.statements[-1])]
    between = [each for each in stretch if each not in found.statements]
    return any(node.value in names for each in between for node in draft.nodes(cst.Name, each))


def _stays(draft: Draft, asked: tuple[_Asked, ...], statements: tuple[cst.SimpleStatementLine, ...]) -> bool:
    """Whether what they are asked of and by means the same from the first to the last, and nothing depends on order."""
    siblings = draft.siblings(statements[0])
    stretch = siblings[siblings.index(statements[0]) : siblings.index(statements[-1])]
    names = {
        node.value
        for each in asked
        for code in (each.outputs, each.inputs, *(code for _, code in each.others))
        for node in _names(code)
    }
    return not names & set(_changed(draft, stretch)) and not any(_leaves(each) for each in stretch)


def _names(code: str) -> list[cst.Name]:
    return [cst.ensure_type(each, cst.Name) for each in m.findall(cst.parse_expression(code), m.Name())]


def _changed(draft: Draft, statements: list[Statement]) -> Iterator[str]:
    for one in statements:
        for target in (*targets_of(draft, one), *written_in_place(draft, one)):
            yield from (each.value for each in draft.nodes(cst.Name, target))


def _leaves(statement: cst.CSTNode) -> bool:
    """Whether a statement may end the block, or has weights changed before the next."""
    ends = m.Return() | m.Break() | m.Continue() | m.Raise() | m.Del() | m.Yield() | m.Await()
    steps = m.Call(func=m.Attribute(attr=m.Name("step") | m.Name("backward") | m.Name("load_state_dict")))
    return bool(m.findall(statement, ends | steps))


def _asked_in(draft: Draft, statement: cst.SimpleStatementLine) -> Iterator[_Asked]:
    """The gradients that a statement asks for whenever it runs, once each."""
    if len(statement.body) != 1 or not isinstance(statement.body[0], (cst.Assign, cst.Return, cst.AnnAssign, cst.Expr)):
        return
    for call in draft.nodes(cst.Call, statement):
        inside = list(draft.ancestors(call))
        inside = inside[: inside.index(statement)]
        sometimes = (cst.Lambda, cst.CompFor, cst.BaseComp, cst.IfExp, cst.BooleanOperation, cst.NamedExpr)
        if not any(isinstance(each, sometimes) for each in inside):
            found = _direct(draft, call) or _by_function(draft, call)
            if found is not None:
                yield found


def _direct(draft: Draft, call: cst.Call) -> _Asked | None:
    """``torch.autograd.grad(u, x, …)[0]``, or the only element of a tuple that it is assigned to."""
    if full_name(draft, call.func) != _GRAD or has_starred(call) or unpacked(call):
        return None
    above = draft.parent(call)
    if isinstance(above, cst.Subscript) and above.value is call and m.matches(above, _FIRST):
        whole: cst.BaseExpression = above
    elif (
        isinstance(above, cst.Assign)
        and len(above.targets) == 1
        and isinstance(above.targets[0].target, cst.Tuple)
        and len(above.targets[0].target.elements) == 1
    ):
        whole = call
    else:
        return None
    given = {name: argument(call, name, _PARAMETERS) for name in _PARAMETERS}
    outputs, inputs = given.pop("outputs"), given.pop("inputs")
    known = sum(each is not None for each in given.values()) + 2 == len(call.args)
    if outputs is None or inputs is None or not known or "#" in draft.code(call):
        return None
    if not all(m.matches(each.value, _PLAIN) for each in (outputs, inputs)):
        return None
    others = tuple((name, draft.code(each.value)) for name, each in given.items() if each is not None)
    if any("\n" in code or not _pure(draft, code) for _, code in others):
        return None
    return _Asked(whole, draft.code(call.func), draft.code(outputs.value), draft.code(inputs.value), others)


def _pure(draft: Draft, code: str) -> bool:
    """Whether an argument is the same whenever it is computed: a constant, a name, ``torch.ones_like(u)``."""
    node = cst.parse_expression(code)
    if is_literal(node) or m.matches(node, _PLAIN):
        return True
    ones = isinstance(node, cst.Call) and isinstance(node.func, (cst.Name, cst.Attribute))
    return ones and m.matches(
        node, m.Call(func=m.Attribute(attr=m.Name("ones_like")) | m.Name("ones_like"), args=[m.Arg(value=_PLAIN)])
    )


def _by_function(draft: Draft, call: cst.Call) -> _Asked | None:
    """``gradient(u, x)`` of the file's own function that does nothing but ask."""
    method = m.matches(call.func, m.Attribute(value=m.Name("self")))
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) and method else ""
    name = call.func.value if isinstance(call.func, cst.Name) else name
    functions = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == name]
    if not name or len(functions) != 1 or (not method and is_bound_elsewhere(draft, name)):
        return None
    (function,) = functions
    holder = draft.enclosing_class(function)
    if method != (holder is not None) or (method and draft.enclosing_class(call) is not holder):
        return None
    static = any(m.matches(each.decorator, m.Name("staticmethod")) for each in function.decorators)
    if (function.decorators and not static) or has_starred(call) or unpacked(call) or function.asynchronous:
        return None
    inner = _only_asks(draft, function)
    if inner is None:
        return None
    parameters = [*function.params.posonly_params, *function.params.params]
    own = [each.name.value for each in parameters][1 if method and not static else 0 :]
    others = (*function.params.kwonly_params, function.params.star_kwarg)
    if any(others) or not isinstance(function.params.star_arg, cst.MaybeSentinel):
        return None
    values: dict[str, str] = {}
    for parameter in parameters:
        given = argument(call, parameter.name.value, own)
        if given is not None and m.matches(given.value, _PLAIN):
            values[parameter.name.value] = draft.code(given.value)
        elif given is None and parameter.default is not None and is_literal(parameter.default):
            values[parameter.name.value] = draft.code(parameter.default)
        elif parameter.name.value in own:
            return None
    if len(call.args) > len(own) or inner.outputs not in own or inner.inputs not in own:
        return None
    known = {*values, "True", "False", "None"}
    if any(not set(_OWN_NAME.findall(code)) <= known for _, code in inner.others):
        return None  # a name of the module's may be another one where the function is called
    filled = tuple((key, _with(code, values)) for key, code in inner.others)
    return _Asked(call, inner.function, values[inner.outputs], values[inner.inputs], filled)


def _only_asks(draft: Draft, function: cst.FunctionDef) -> _Asked | None:
    """The gradient that a function returns, where its other statements only give names: to it, or to what it takes."""
    body = [each for each in function.body.body if isinstance(each, cst.SimpleStatementLine) and not _is_text(each)]
    last = body.pop() if body else None
    if last is None or any(not isinstance(each, cst.SimpleStatementLine) for each in function.body.body):
        return None
    if len(last.body) != 1 or not isinstance(last.body[0], cst.Return):
        return None
    returned = last.body[0].value
    asked = [each for call in draft.nodes(cst.Call, last) if (each := _direct(draft, call)) is not None]
    if not asked and body and isinstance(returned, cst.Name):
        named = body.pop()
        asked = [each for call in draft.nodes(cst.Call, named) if (each := _direct(draft, call)) is not None]
        if len(asked) != 1 or _target(draft, asked[0], named) != returned.value:
            return None
    elif len(asked) != 1 or asked[0].whole is not returned:
        return None
    values: dict[str, str] = {}
    for line in body:
        if not m.matches(line, m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())])])):
            return None
        assign = cst.ensure_type(line.body[0], cst.Assign)
        code = draft.code(assign.value)
        if "\n" in code or not _pure(draft, code):
            return None
        values[cst.ensure_type(assign.targets[0].target, cst.Name).value] = _with(code, values)
    others = tuple((name, _with(code, values)) for name, code in asked[0].others)
    return None if values.keys() & {asked[0].outputs, asked[0].inputs} else replace(asked[0], others=others)


def _is_text(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString())]))


def _with(code: str, values: dict[str, str]) -> str:
    """The code of an argument with what a function's parameters stand for."""
    return _OWN_NAME.sub(lambda found: values.get(found[0], found[0]), code)
