"""Loops that take a tensor's parts, or write them, one by one: the tensor is taken apart before, or joined behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import last_name
from advisor.edit.names import ensure_name, fresh_name, plain_name
from advisor.edit.scopes import assigned_once, scope_of, variables
from advisor.edit.sums import elements
from advisor.harness.layout import Site

_LOOPS = (cst.For, cst.While)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_WHOLE = m.Slice(lower=None, upper=None, step=None)
_VIEWS = (
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "transpose", "t", "permute", "contiguous", "detach", "to",
)  # fmt: skip
_PLAIN = m.Arg(star="", keyword=None)
_COUNTED = m.Call(m.Name("range"), [_PLAIN, m.AtMostN(_PLAIN, n=1)])
_ENUMERATED = m.Call(m.Name("enumerate"), [_PLAIN])
_TRAINS = ("backward", "zero_grad")  # a part's graph is gone behind it
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


def take_apart(draft: Draft, taken: Sequence[Site], written: Sequence[Site]) -> str:
    """Have what is at these sites be taken from, and be put into, tuples and lists; why nothing is, as a clause.

    ``x[:, i]`` becomes ``x_parts[i]`` of ``x_parts = x.unbind(1)`` in front of the loop; ``y[:, i] = value`` becomes
    ``y_parts.append(value)``, and behind the loop y gets all of them at once.
    """
    reads = [each for site in taken for each in _parts_at(draft, site, False)]
    writes = [each for site in written for each in _parts_at(draft, site, True)]
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
        rest = ", ".join(draft.code(each.slice) for each in part.rest)
        draft.replace(part.node, f"{names[key]}[{draft.code(part.number)}]" + (f"[{rest}]" if rest else ""))
    for part, loop in joined:
        name = fresh_name(draft, f"{_last(part.tensor)}_parts", names.values())
        names[part.tensor, part.dim, loop] = name
        _join(draft, part, loop, name)
    return ""


def _last(tensor: str) -> str:
    return tensor.rpartition(".")[2]


# What stands there ---------------------------------------------------------------------------------------------------


def _parts_at(draft: Draft, site: Site, written: bool) -> list[_Part]:
    """The part that was recorded at `site`; without columns all of its line that look like one."""
    found = []
    for node in draft.nodes(cst.Subscript):
        where = draft.position(node)
        if where.start.line != site.line or isinstance(draft.parent(node), cst.AssignTarget) != written:
            continue
        if site.column is not None and site.end_column is not None:
            line = draft.lines[site.line - 1].encode()
            ends = len((draft.lines[where.end.line - 1])[: where.end.column].encode())
            starts = len(line.decode()[: where.start.column].encode())
            if (starts, where.end.line, ends) != (site.column, site.end_line, site.end_column):
                continue
        part = _part(draft, node)
        if part is not None:
            found.append(part)
    # Of several subscripts on a line of whose columns nothing is known only those are tensors' for certain that say so.
    if site.column is None and len(found) > 1:
        found = [each for each in found if len(each.node.slice) > 1]
    return found


def _part(draft: Draft, node: cst.Subscript) -> _Part | None:
    tensor = plain_name(node.value)
    if not tensor:
        return None
    for at, element in enumerate(node.slice):
        if isinstance(element.slice, cst.Index):
            number, rest = element.slice.value, node.slice[at + 1 :]
            if isinstance(number, cst.Ellipsis):
                inner = node.slice[at + 1] if len(node.slice) == at + 2 else None  # x[..., i]
                last = inner.slice if inner is not None else None
                if not isinstance(last, cst.Index) or isinstance(last.value, (cst.Tuple, cst.List)):
                    return None
                return _Part(node, tensor, -1, last.value, ())
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

    None where the tensor may become another one meanwhile, may be None, or where the part is written to.
    """
    loop = _counting_loop(draft, part)
    statement = draft.statement(loop) if loop is not None else None
    function = scope_of(draft, part.node)
    if loop is None or statement is None or isinstance(function, (cst.Lambda, cst.ClassDef)):
        return None
    if isinstance(loop, _COMPREHENSIONS) and not isinstance(statement, cst.SimpleStatementLine):
        return None
    within: cst.CSTNode = loop if isinstance(loop, _LOOPS) else statement
    if _rebound(draft, part.tensor, within) or _may_be_none(draft, part.tensor, function):
        return None
    if any(last_name(draft, call) in _TRAINS for call in draft.nodes(cst.Call, within)):
        return None
    return None if _is_changed(draft, part.node, function) else statement


def _counting_loop(draft: Draft, part: _Part) -> cst.CSTNode | None:
    """The innermost loop around that makes the number another one: it binds one of the names in it."""
    names = {each.value for each in draft.nodes(cst.Name, part.number)}
    below: cst.CSTNode = part.node
    for above in draft.ancestors(part.node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return None
        repeats = isinstance(above, _LOOPS) and (below is above.body or isinstance(above, cst.While))
        repeats |= isinstance(above, _COMPREHENSIONS) and below is not above.for_in
        if repeats and names & set(_bound(draft, above)):
            return above
        below = above
    return None


def _bound(draft: Draft, within: cst.CSTNode) -> list[str]:
    """The plain names that `within` binds: targets of loops, of assignments, of ``with``."""
    targets: list[cst.BaseExpression] = [each.target for each in draft.nodes(cst.AssignTarget, within)]
    binds: list[cst.For | cst.CompFor | cst.AugAssign | cst.AnnAssign | cst.NamedExpr] = [
        *draft.nodes(cst.For, within),
        *draft.nodes(cst.CompFor, within),
        *draft.nodes(cst.AugAssign, within),
        *draft.nodes(cst.AnnAssign, within),
        *draft.nodes(cst.NamedExpr, within),
    ]
    targets += [each.target for each in binds]
    targets += [each.name for each in draft.nodes(cst.AsName, within) if isinstance(each.name, cst.BaseExpression)]
    return [plain_name(each) for target in targets for each in elements(target)]


def _rebound(draft: Draft, tensor: str, within: cst.CSTNode) -> bool:
    """Whether the name, or what it is an attribute of, is bound there, or what it holds is written to."""
    names = {*_bound(draft, within), *(plain_name(each) for each in written_in_place(draft, within))}
    parts = tensor.split(".")
    deleted = {plain_name(each.target) for each in draft.nodes(cst.Del, within)}
    return any(".".join(parts[:end]) in names | deleted for end in range(1, len(parts) + 1))


def _may_be_none(draft: Draft, tensor: str, function: cst.CSTNode) -> bool:
    """Whether the function asks what the name holds, or lets it be None."""
    for compared in draft.nodes(cst.Comparison, function):
        asks = any(isinstance(each.operator, (cst.Is, cst.IsNot)) for each in compared.comparisons)
        if asks and plain_name(compared.left) == tensor:
            return True
    tests: list[cst.BaseExpression] = [each.test for each in draft.nodes(cst.If, function)]
    tests += [each.test for each in draft.nodes(cst.IfExp, function)]
    tests += [side for each in draft.nodes(cst.BooleanOperation, function) for side in (each.left, each.right)]
    tests += [each.expression for each in draft.nodes(cst.UnaryOperation, function)]
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
        return "inplace" in said or "out" in said
    if isinstance(above, cst.Element):  # a, b = x[i], y[i]
        above = draft.parent(draft.parent(above) or above)
    if not isinstance(above, (cst.Assign, cst.AnnAssign, cst.NamedExpr)):
        return False
    targets = [each.target for each in above.targets] if isinstance(above, cst.Assign) else [above.target]
    given = {plain_name(each) for target in targets for each in elements(target)}
    return bool(given & {plain_name(each) for each in written_in_place(draft, function)})


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
    counter = elements(loop.target)[0]
    if not m.matches(loop.iter, _COUNTED if counter is loop.target else _ENUMERATED):
        return None
    if draft.code(part.number) != draft.code(counter) or not _runs_each_round(draft, statement, loop):
        return None
    scope = scope_of(draft, part.node)
    made = assigned_once(draft, part.tensor, scope)
    if not isinstance(made, cst.Call) or last_name(draft, made) not in _MAKES or draft.line(made) > draft.line(loop):
        return None
    if len(variables(draft, part.tensor, loop)) != 1 or draft.nodes(cst.Continue, loop):
        return None
    shared = plain_name(_shared(assign.value))
    if shared and shared not in _bound(draft, loop):
        return None  # one buffer, which a call may fill anew in each round
    changed = {plain_name(each) for each in written_in_place(draft, loop)}
    used = {plain_name(each) for kind in (cst.Name, cst.Attribute) for each in draft.nodes(kind, assign.value)}
    counters = [each for each in _bound(draft, loop.body) if each == draft.code(counter)]
    return None if used & changed or counters else loop


def _shared(value: cst.BaseExpression) -> cst.BaseExpression:
    """What `value` may be a view of: ``h`` of ``h[0].squeeze(1)``."""
    while True:
        if isinstance(value, cst.Subscript):
            value = value.value
        elif isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _VIEWS:
            value = value.func.value
        else:
            return value


def _runs_each_round(draft: Draft, statement: Statement, loop: cst.For) -> bool:
    """Whether a statement stands in the loop's own body, or in a ``with`` there."""
    for above in draft.ancestors(statement):
        if above is loop:
            return True
        if not isinstance(above, (cst.With, cst.IndentedBlock)):
            return False
    return False


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
    # A range from one number to another may well be empty, and of nothing there is no stack.
    draft.insert_after(loop, f"if {name}:\n    {stack}" if first else stack)
