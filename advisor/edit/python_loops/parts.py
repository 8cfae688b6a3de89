"""Loops that take a tensor's parts, or write them, one by one: the tensor is taken apart before, or joined behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import by_extent, last_name
from advisor.edit.names import ensure_name, fresh_name, last_part, own_attribute, plain_name
from advisor.edit.scopes import assignments, attribute_assignment, is_bound_elsewhere, scope_of, variables
from advisor.edit.sums import elements
from advisor.harness.layout import Site

_LOOPS = (cst.For, cst.While)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_WHOLE = m.Slice(lower=None, upper=None, step=None)
_PLAIN = m.Arg(star="", keyword=None)
_COUNTED = m.Call(m.Name("range"), [_PLAIN, m.AtMostN(_PLAIN, n=1)])
_ENUMERATED = m.Call(m.Name("enumerate"), [_PLAIN])
_TRAINS = ("backward", "zero_grad")  # the tensor may be a weight, which is another one then; a cell has a step, too
_STEPS = re.compile(r"opt|sched|scaler", re.IGNORECASE)
_SWITCHES = re.compile(r"grad|inference")  # no_grad(), enable_grad(): what is taken has its graph by these
_SAME = ("hasattr", "getattr", "callable", "isinstance", "len")  # of what is the same in all rounds they say the same
_ACTIVATIONS = ("ReLU", "ReLU6", "SiLU", "Hardswish", "Hardsigmoid", "Mish", "SELU")  # nn.ReLU(True)
_MOVES = ("to", "cuda", "float", "half", "type", "type_as")
_MAKES = (
    "zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like",
    "new_zeros", "new_ones", "new_empty", "new_full",
)  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """``x[:, i]`` or ``x[:, i, :5]``: the tensor, the dimension (-1 the last), the number, what else is asked of it."""

    node: cst.Subscript
    tensor: str
    dim: int
    number: cst.BaseExpression
    rest: tuple[cst.SubscriptElement, ...]


Index = tuple[int, int]
"""Of an index that was recorded: the dimension of its first number, and how many keys it has."""


def take_apart(
    draft: Draft, taken: Sequence[Site], written: Sequence[Site], indices: Sequence[Index | None] = ()
) -> str:
    """Have what is at these sites be taken from, and be put into, tuples and lists; why nothing is, as a clause.

    ``x[:, i]`` becomes ``x_parts[i]`` of ``x_parts = x.unbind(1)`` in front of the loop; ``y[:, i] = value`` becomes
    ``y_parts.append(value)``, and behind the loop y gets all of them at once. `indices` are what was recorded of the
    sites, of those that are taken first.
    """
    known = indices or [None] * (len(taken) + len(written))
    reads = _parts(draft, zip(taken, known[: len(taken)], strict=True), False)
    writes = _parts(draft, zip(written, known[len(taken) :], strict=True), True)
    taken_apart = [(each, loop) for each in reads if (loop := _takes_from_same(draft, each)) is not None]
    joined = [(each, loop) for each in writes if (loop := _writes_all(draft, each)) is not None]
    if not taken_apart and not joined:
        return "whether each tensor stays the same while the loop runs cannot be told from the source"
    names: dict[tuple[str, int, Statement], str] = {}
    for part, before in taken_apart:
        key = part.tensor, part.dim, before
        if key not in names:
            names[key] = fresh_name(draft, f"{_last(part.tensor)}_parts", names.values())
            draft.insert_before(before, f"{names[key]} = {part.tensor}.unbind({part.dim})")
        rest = "".join(f"{code}, " for code in (*[":"] * part.dim, *(draft.code(each.slice) for each in part.rest)))
        more = f"[{rest.removesuffix(', ')}]" if part.rest else ""
        draft.replace(part.node, f"{names[key]}[{draft.code(part.number)}]{more}")
    for part, loop in joined:
        name = fresh_name(draft, f"{_last(part.tensor)}_parts", names.values())
        names[part.tensor, part.dim, loop] = name
        _join(draft, part, loop, name)
    return ""


def _last(tensor: str) -> str:
    return tensor.rpartition(".")[2]


# What stands there ---------------------------------------------------------------------------------------------------


def _parts(draft: Draft, known: Iterable[tuple[Site, Index | None]], written: bool) -> list[_Part]:
    """What was recorded at these sites, each node once: a module that is run twice has its code twice."""
    found = [each for site, index in known for each in _parts_at(draft, site, index, written)]
    return list({each.node: each for each in found}.values())


def _parts_at(draft: Draft, site: Site, index: Index | None, written: bool) -> list[_Part]:
    """The part that was recorded at `site`; without columns all of its line that look like one.

    What is written as one key may be a tuple of several, and a name a slice: then the source has another index.
    """
    nodes = [each for each in draft.nodes(cst.Subscript) if isinstance(draft.parent(each), cst.AssignTarget) == written]
    if site.column is not None:
        exact = by_extent(draft, nodes, site)
        part = _part(draft, exact) if exact is not None else None
        if part is None or (index is not None and len(part.node.slice) != index[1]):
            return []
        return [part] if index is None or part.dim < 0 or part.dim == index[0] else []
    found = [part for each in nodes if draft.line(each) == site.line and (part := _part(draft, each)) is not None]
    # Of several on a line only those are tensors' for certain that take all of a dimension.
    return found if len(found) == 1 else [each for each in found if len(each.node.slice) > 1]


def _part(draft: Draft, node: cst.Subscript) -> _Part | None:
    tensor = plain_name(node.value)
    if not tensor:
        return None
    for at, element in enumerate(node.slice):
        if isinstance(element.slice, cst.Index):
            number, rest = element.slice.value, node.slice[at + 1 :]
            if isinstance(number, cst.Ellipsis):
                inner, behind = node.slice[at + 1 : at + 2], node.slice[at + 2 :]  # x[..., i], x[..., i, :]
                last = inner[0].slice if inner else None
                if not isinstance(last, cst.Index) or isinstance(last.value, (cst.Tuple, cst.List)):
                    return None
                return _Part(node, tensor, -1 - len(behind), last.value, ()) if all(map(_is_whole, behind)) else None
            if element.slice.star or isinstance(number, (cst.Tuple, cst.List)) or m.matches(number, m.Name("None")):
                return None
            all_of_rest = all(_is_whole(each) for each in rest)
            return _Part(node, tensor, at, number, () if all_of_rest else tuple(rest))
        if not m.matches(element.slice, _WHOLE):
            return None
    return None


def _is_whole(element: cst.SubscriptElement) -> bool:
    return m.matches(element.slice, _WHOLE | m.Index(m.Ellipsis()))


# Taken from what stays the same ---------------------------------------------------------------------------------------


def _takes_from_same(draft: Draft, part: _Part) -> Statement | None:
    """The statement to take the tensor apart in front of: the loop that counts, or that of a comprehension.

    The outermost of those that make the number another one, and on outwards in a function that does not train. None
    where the tensor may become another one meanwhile, may be None, or where the part is written to.
    """
    scope = scope_of(draft, part.node)
    if isinstance(scope, (cst.Lambda, cst.ClassDef)) or _is_changed(draft, part.node, scope):
        return None
    if _may_be_none(draft, part.tensor, scope) or _set_elsewhere(draft, part.tensor, scope):
        return None
    names = {each.value for each in draft.nodes(cst.Name, part.number)}
    outwards = isinstance(scope, cst.FunctionDef) and not _trains(draft, scope)
    found: Statement | None = None
    for loop in _loops_around(draft, part.node):
        if _is_conditional(draft, part.node, loop):
            break
        statement = draft.statement(loop)
        within = loop if isinstance(loop, _LOOPS) else statement
        if within is None or statement is None or _rebound(draft, part.tensor, within) or _trains(draft, within):
            break
        if not isinstance(loop, _LOOPS) and not isinstance(statement, cst.SimpleStatementLine):
            break
        if names & set(_bound(draft, loop)) or (found is not None and outwards):
            found = statement
    return found


def _trains(draft: Draft, within: cst.CSTNode) -> bool:
    for call in draft.nodes(cst.Call, within):
        name = last_name(draft, call)
        if name in _TRAINS or (name == "step" and (not call.args or _STEPS.search(draft.code(call.func)))):
            return True
    return False


def _loops_around(draft: Draft, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The loops and comprehensions of the function that do `node` in each of their rounds, from the inside out."""
    below = node
    for above in draft.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return
        repeats = isinstance(above, _LOOPS) and (below is above.body or isinstance(above, cst.While))
        if repeats or (isinstance(above, _COMPREHENSIONS) and below is not above.for_in):
            yield above
        below = above


def _is_conditional(draft: Draft, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
    """Whether something that is the same in all rounds decides that the part is taken: ``if self.use:``.

    The tensor need not be one otherwise. Of a comprehension that is what its whole statement is about, too. So does
    what switches gradients on or off there decide what graph it has.
    """
    own, whole, inside = set(_bound(draft, loop)), draft.statement(loop), True
    for above in draft.ancestors(node):
        if above is whole:
            return False
        if above is loop:
            inside = False
        if isinstance(above, cst.Try):
            return True
        if isinstance(above, cst.With) and any(_SWITCHES.search(draft.code(each.item)) for each in above.items):
            return True
        if isinstance(above, (cst.If, cst.IfExp, cst.BooleanOperation)):
            test = above.left if isinstance(above, cst.BooleanOperation) else above.test
            names = {each.value for each in draft.nodes(cst.Name, test)}
            drawn = [each for each in draft.nodes(cst.Call, test) if last_name(draft, each) not in _SAME]
            if not inside or not (names & own or drawn):
                return True
    return False


def _bound(draft: Draft, within: cst.CSTNode) -> list[str]:
    """The plain names that `within` binds: targets of loops, of assignments, of ``with``."""
    targets = [*targets_of(draft, within), *(each.target for each in draft.nodes(cst.CompFor, within))]
    return [plain_name(each) for target in targets for each in elements(target)]


def _rebound(draft: Draft, tensor: str, within: cst.CSTNode) -> bool:
    """Whether the name, what it is an attribute of, or an attribute of it is bound there, or it is written to."""
    names = {*_bound(draft, within), *(plain_name(each) for each in written_in_place(draft, within))}
    names |= {plain_name(each.target) for each in draft.nodes(cst.Del, within)}
    parts = tensor.split(".")
    return any(".".join(parts[:end]) in names for end in range(1, len(parts) + 1)) or any(
        each.startswith(f"{tensor}.") for each in names
    )


def _set_elsewhere(draft: Draft, tensor: str, scope: cst.CSTNode) -> bool:
    """Whether another function may give the name something else, which the loop may call.

    An attribute that is assigned outside of ``__init__``, a variable that is global or nonlocal.
    """
    name = tensor.rpartition(".")[2]
    if name == tensor:
        return is_bound_elsewhere(draft, name)
    for target in draft.nodes(cst.Attribute):
        function = draft.function(target)
        elsewhere = function is not scope and (function is None or function.name.value != "__init__")
        if target.attr.value == name and elsewhere and attribute_assignment(draft, target):
            return True
    return False


def _may_be_none(draft: Draft, tensor: str, function: cst.CSTNode) -> bool:
    """Whether the function asks what the name holds, or lets it be None."""
    for assign in draft.nodes(cst.Assign, function if "." not in tensor else None):
        given = [plain_name(each) for to in assign.targets for each in elements(to.target)]
        if tensor in given and "None" in {each.value for each in draft.nodes(cst.Name, assign.value)}:
            return True
    for compared in draft.nodes(cst.Comparison, function):
        asks = any(isinstance(each.operator, (cst.Is, cst.IsNot)) for each in compared.comparisons)
        if asks and plain_name(compared.left) == tensor:
            return True
    tests: list[cst.BaseExpression] = [each.test for each in draft.nodes(cst.If, function)]
    tests += [each.test for each in draft.nodes(cst.IfExp, function)]
    tests += [side for each in draft.nodes(cst.BooleanOperation, function) for side in (each.left, each.right)]
    negated = [each for each in draft.nodes(cst.UnaryOperation, function) if isinstance(each.operator, cst.Not)]
    tests += [each.expression for each in negated]
    if any(plain_name(each) == tensor for each in tests):
        return True
    for call in draft.nodes(cst.Call, function):
        asks = last_name(draft, call) in ("isinstance", "is_tensor") and bool(call.args)
        if asks and plain_name(call.args[0].value) == tensor:
            return True
    parameters = draft.nodes(cst.Param, function.params) if isinstance(function, cst.FunctionDef) else []
    defaults = [each.default for each in parameters if each.name.value == tensor and each.default is not None]
    return any(m.matches(each, m.Name("None")) for each in defaults)


def _is_changed(draft: Draft, node: cst.Subscript, function: cst.CSTNode) -> bool:
    """Whether a part is written to, by the name that it is given, or by a call that says so.

    What ``unbind`` gives must not be: "is the output of a function that returns multiple views".
    """
    above = draft.parent(node)
    if isinstance(above, cst.Arg):
        call = draft.parent(above)
        said = [arg.keyword.value for arg in cst.ensure_type(call, cst.Call).args if arg.keyword] if call else []
        module = call is not None and bool(own_attribute(cst.ensure_type(call, cst.Call).func))
        return "inplace" in said or "out" in said or (module and _may_begin_in_place(draft))
    if isinstance(above, cst.Element):  # a, b = x[i], y[i]
        above = draft.parent(draft.parent(above) or above)
    if not isinstance(above, (cst.Assign, cst.AnnAssign, cst.NamedExpr)):
        return False
    targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else [above.target]
    given = {plain_name(each) for target in targets for each in elements(target)}
    return bool(given & {plain_name(each) for each in written_in_place(draft, function)})


def _may_begin_in_place(draft: Draft) -> bool:
    """Whether some module of the file begins with one that writes to what it is given: ``nn.ReLU(inplace=True)``."""
    for call in draft.nodes(cst.Call):
        told = argument(call, "inplace", ("inplace",) if last_part(call.func) in _ACTIVATIONS else ())
        if told is not None and m.matches(told.value, m.Name("True")):
            above = draft.parent(draft.parent(call) or call)
            if isinstance(above, cst.Call) and above.args[0].value is call:
                return True
    return False


# Written into what nobody reads meanwhile -----------------------------------------------------------------------------


def _writes_all(draft: Draft, part: _Part) -> cst.For | None:
    """The loop that counts its rounds, each of which writes one part; None where anything else does, or reads it.

    What is written must still be the same behind the loop.
    """
    statement, loop = draft.statement(part.node), draft.loop(part.node)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1 or part.rest or part.dim < 0:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or not isinstance(loop, cst.For) or loop.orelse:
        return None
    if draft.block(statement) is not loop.body or any(isinstance(each, cst.Try) for each in draft.ancestors(loop)):
        return None  # now and then, or as far as an error
    if not _is_counter(draft, part.number, loop) or not _is_made_once(draft, part, loop):
        return None
    if len(variables(draft, part.tensor, loop)) != 1 or draft.nodes(cst.Continue, loop):
        return None
    changed = {plain_name(each) for each in written_in_place(draft, loop)}
    used = {plain_name(each) for kind in (cst.Name, cst.Attribute) for each in draft.nodes(kind, assign.value)}
    return None if used & changed else loop


def _is_counter(draft: Draft, number: cst.BaseExpression, loop: cst.For) -> bool:
    """Whether `number` is what the loop counts by, from 0 on or from a number or name that stays the same."""
    bound, counter = _bound(draft, loop.body), elements(loop.target)[0]
    name = draft.code(counter)
    if not m.matches(loop.iter, _COUNTED if counter is loop.target else _ENUMERATED) or name in bound:
        return False
    first, *others = (each.value for each in cst.ensure_type(loop.iter, cst.Call).args)
    plain = not others or (m.matches(first, m.Integer() | m.Name()) and draft.code(first) not in (*bound, name))
    return plain and m.matches(number, m.Name(name))


def _is_made_once(draft: Draft, part: _Part, loop: cst.For) -> bool:
    """Whether the tensor is made in front of the loop, and no function within reads it, which the loop may call."""
    scope = scope_of(draft, part.node)
    given = list(assignments(draft, part.tensor, scope, elements=True))
    made = given[0] if len(given) == 1 else _last_before(draft, given, loop)
    while isinstance(made, cst.Call) and last_name(draft, made) in _MOVES and isinstance(made.func, cst.Attribute):
        made = made.func.value  # torch.zeros(n, 8).to(device)
    if not isinstance(made, cst.Call) or last_name(draft, made) not in _MAKES or draft.line(made) > draft.line(loop):
        return False
    return all(scope_of(draft, each) is scope for each in variables(draft, part.tensor, scope))


def _last_before(draft: Draft, given: Sequence[cst.BaseExpression | None], loop: cst.For) -> cst.BaseExpression | None:
    """Of what a name is given in several branches what it certainly has when the loop begins, and until it ends.

    What it is given behind the loop it has in the next round of a loop around that, too.
    """
    around = [loop, *draft.ancestors(loop)]
    outer = next((each for each in around[1:] if isinstance(each, _LOOPS)), None)
    last: cst.BaseExpression | None = None
    for value in sorted((each for each in given if each is not None), key=draft.line):
        statement = draft.statement(value)
        if statement is None or None in given:
            return None
        if draft.line(value) > draft.position(loop).end.line:
            again = any(isinstance(each, _LOOPS) and each in around for each in draft.ancestors(value))
            if again and (last is None or not any(each is outer for each in draft.ancestors(last))):
                return None
            continue
        last = value if any(each in draft.siblings(statement) for each in around) else None
    return last


def _join(draft: Draft, part: _Part, loop: cst.For, name: str) -> None:
    statement = draft.statement(part.node)
    assert statement is not None
    assign = cst.ensure_type(cst.ensure_type(statement, cst.SimpleStatementLine).body[0], cst.Assign)
    append = cst.Attribute(cst.Name(name), cst.Name("append"))

    def appended(now: cst.Assign) -> cst.Expr:
        return cst.Expr(cst.Call(append, [cst.Arg(now.value)]))

    draft.change(assign, appended)
    draft.insert_before(loop, f"{name} = []")
    given = cst.ensure_type(loop.iter, cst.Call).args
    first = draft.code(given[0].value) if len(given) == 2 else ""
    whole = "".join(":, " for _ in range(part.dim))
    behind = f"{first} : {first} + len({name})" if first else f": len({name})"
    stack = f"{part.tensor}[{whole}{behind}] = {ensure_name(draft, 'torch.stack')}({name}, {part.dim})"
    draft.insert_after(loop, f"if {name}:\n    {stack}")  # of nothing there is no stack
