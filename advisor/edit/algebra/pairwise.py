"""Sums over pairs of rows as people write them out, ``((x[:, None] - y[None]) ** 2).sum(-1)``, and what does without.

A pair of tensors is written out where one is given a dimension that the other has, and the other way round: by
``None`` in its index, ``unsqueeze``, or for want of it on the left. What is then summed is a matrix product or a
distance: both have functions that never write the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument, has_starred
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import is_in_place, written_in_place
from advisor.edit.models import made_once
from advisor.edit.names import ensure_name, full_name, plain_name
from advisor.edit.scopes import assignments, is_bound_elsewhere, is_parameter, scope_of
from advisor.edit.sums import elements

PRODUCT, SQUARES, DISTANCE, MANHATTAN, COSINE = "product", "squares", "distance", "manhattan", "cosine"
# The operator that writes the pairs out.
OPERATORS = {
    PRODUCT: "aten::mul",
    SQUARES: "aten::sub",
    DISTANCE: "aten::sub",
    MANHATTAN: "aten::sub",
    COSINE: "aten::cosine_similarity",
}
_LETTERS = "ijklmnop"
_NONE = ("None", "np.newaxis", "numpy.newaxis")
_EXACT = 'compute_mode="donot_use_mm_for_euclid_dist"'
_OPEN = (cst.Attribute, cst.BinaryOperation, cst.UnaryOperation, cst.Subscript, cst.Comparison, cst.Await)
_FUNCTIONAL = "torch.nn.functional"


@dataclass(frozen=True)
class Side:
    """One tensor: ``value`` as it is, and the places of dimensions that it is given, in a tensor of `dimensions`."""

    node: cst.BaseExpression
    value: cst.BaseExpression
    dimensions: int
    given: frozenset[int]


@dataclass(frozen=True)
class Pairing:
    """``whole`` sums what ``first`` and ``second`` are together over ``dim``; ``names`` are what leads to it."""

    kind: str
    whole: cst.BaseExpression
    first: cst.BaseExpression
    second: cst.BaseExpression
    dim: int
    names: tuple[Statement, ...] = field(default=())


def pairings(draft: Draft) -> Iterator[Pairing]:
    """All sums over a last step of two expressions' meeting, whether or not these give each other dimensions."""
    for node in draft.nodes(cst.Call):
        found = _cosine(draft, node) or _summed(draft, node) or _norm(draft, node)
        if found is not None and _gives(found.first) | _gives(found.second):
            yield _rooted(draft, found) if found.kind == SQUARES else found


def given_places(found: Pairing, first: int, second: int) -> tuple[frozenset[int], frozenset[int]] | None:
    """The dimensions that each of the two is given, of tensors with so many as they meet; those of ``expand`` aside."""
    sides = _side(found.first, first), _side(found.second, second)
    if sides[0] is None or sides[1] is None:
        return None
    one, other = (frozenset() if _expanded(each.node) is not each.node else each.given for each in sides if each)
    return one, other


def without_pairs(draft: Draft, found: Pairing, first: int, second: int) -> str | None:
    """Code for the same without writing out the pairs, of tensors with `first` and `second` dimensions as they meet.

    None where the two do not give each other dimensions, or no function does it.
    """
    one, other = _side(found.first, first), _side(found.second, second)
    whole = max(first, second)
    if one is None or other is None or whole > len(_LETTERS):
        return None
    summed = found.dim % whole if -whole <= found.dim < whole else -1
    sides = _letters(one, whole), _letters(other, whole)
    if summed < 0 or not all(_LETTERS[summed] in each for each in sides):
        return None
    if set(sides[0]) <= set(sides[1]) or set(sides[1]) <= set(sides[0]):
        return None
    result = _LETTERS[:whole].replace(_LETTERS[summed], "")
    if set(result) != set(sides[0] + sides[1]) - {_LETTERS[summed]}:
        return None
    values = draft.code(one.value), draft.code(other.value)
    if "#" in draft.code(found.whole) or "\n" in "".join(values):
        return None  # a comment would be lost, and a line end may stand in parentheses that go
    if found.kind in (PRODUCT, COSINE):
        return _product(draft, found, (one, other), values, sides, _LETTERS[summed], result)
    return _distance(draft, found, values, sides, _LETTERS[summed], result)


def replace(draft: Draft, found: Pairing, code: str) -> None:
    """Have the pairing replaced by `code`, and the statements that lead to it removed."""
    above = draft.parent(found.whole)
    bare = not isinstance(above, _OPEN) and not (isinstance(above, cst.Call) and above.func is found.whole)
    draft.replace(found.whole, code if bare or not code.count(" @ ") else f"({code})")
    for statement in found.names:
        draft.remove(statement, comments=False)


# What is summed -------------------------------------------------------------------------------------------------------


def _summed(draft: Draft, call: cst.Call) -> Pairing | None:
    """``e.sum(-1)``, ``torch.sum(e, dim=-1)`` of a product, of squares of a difference, or of its absolute values."""
    taken = _method(draft, call, "sum", ("dim",))
    if taken is None:
        return None
    node, dim = taken[0], _dimension(taken[1].get("dim") or taken[1].get("axis"))
    if dim is None or taken[1].keys() - {"dim", "axis"}:
        return None
    names: list[Statement] = []
    term = _value(draft, node, names)
    if isinstance(term, cst.BinaryOperation) and isinstance(term.operator, cst.Multiply):
        return _pairing(draft, PRODUCT, call, term, dim, names)
    for kind, inner in ((SQUARES, _squared(draft, term)), (MANHATTAN, _absolute(draft, term))):
        difference = _value(draft, inner, names) if inner is not None else None
        if isinstance(difference, cst.BinaryOperation) and isinstance(difference.operator, cst.Subtract):
            return _pairing(draft, kind, call, difference, dim, names)
    return None


def _norm(draft: Draft, call: cst.Call) -> Pairing | None:
    """``(x - y).norm(dim=-1)``, ``torch.linalg.norm(x - y, dim=-1)``, with p=1 as well."""
    taken = _method(draft, call, "norm", ("p", "dim"))
    for name in ("norm", "vector_norm"):
        taken = taken or _function(draft, call, f"torch.linalg.{name}", ("ord", "dim"))
    if taken is None:
        return None
    node, given = taken
    dim, order = _dimension(given.get("dim")), given.get("p", given.get("ord"))
    kind = {"1": MANHATTAN, "2": DISTANCE}.get(draft.code(order).removesuffix(".0") if order is not None else "2")
    if dim is None or kind is None or given.keys() - {"dim", "p", "ord"}:
        return None
    names: list[Statement] = []
    difference = _value(draft, node, names)
    if isinstance(difference, cst.BinaryOperation) and isinstance(difference.operator, cst.Subtract):
        return _pairing(draft, kind, call, difference, dim, names)
    return None


def _pairing(
    draft: Draft, kind: str, whole: cst.Call, meeting: cst.BinaryOperation, dim: int, names: list[Statement]
) -> Pairing:
    """With what names stand for that are given dimensions right before: ``a = x[:, None]``, ``b = y[None]``."""
    sides = [meeting.left, meeting.right]
    for at in (1, 0, 1):
        before = list(names)
        value = _value(draft, sides[at], before)
        if _gives(value):
            sides[at], names = value, before
    return Pairing(kind, whole, sides[0], sides[1], dim, tuple(names))


def _rooted(draft: Draft, found: Pairing) -> Pairing:
    """The same with the root that is taken of it right there: ``.sqrt()``, ``torch.sqrt(…)``, ``** 0.5``."""
    above = draft.parent(found.whole)
    outer = draft.parent(above) if isinstance(above, (cst.Attribute, cst.Arg)) else above
    taken = _method(draft, outer, "sqrt", ()) if isinstance(outer, cst.Call) else None
    half = m.BinaryOperation(operator=m.Power(), right=m.Float("0.5"))
    if (taken is not None and taken[0] is found.whole and not taken[1]) or (
        isinstance(outer, cst.BinaryOperation) and outer.left is found.whole and m.matches(outer, half)
    ):
        assert isinstance(outer, cst.BaseExpression)
        return Pairing(DISTANCE, outer, found.first, found.second, found.dim, found.names)
    return found


def _squared(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression | None:
    if m.matches(node, m.BinaryOperation(operator=m.Power(), right=m.Integer("2") | m.Float("2.0"))):
        return cst.ensure_type(node, cst.BinaryOperation).left
    if not isinstance(node, cst.Call):
        return None
    square = _method(draft, node, "square", ())
    if square is not None:
        return square[0]
    power = _method(draft, node, "pow", ("exponent",))
    exponent = power[1].get("exponent") if power is not None else None
    return power[0] if power is not None and exponent is not None and draft.code(exponent) in ("2", "2.0") else None


def _absolute(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression | None:
    taken = _method(draft, node, "abs", ()) if isinstance(node, cst.Call) else None
    return taken[0] if taken is not None and not taken[1] else None


def _cosine(draft: Draft, call: cst.Call) -> Pairing | None:
    """``F.cosine_similarity(x, y, dim=-1)``, or a call of what is ``nn.CosineSimilarity(dim=-1)`` in this file."""
    if has_starred(call):
        return None
    if full_name(draft, call.func) in (f"{_FUNCTIONAL}.cosine_similarity", "torch.cosine_similarity"):
        parameters = ("x1", "x2", "dim", "eps")
        first, second = argument(call, "x1", parameters), argument(call, "x2", parameters)
        given = argument(call, "dim", parameters)
        if argument(call, "eps", parameters) is not None:
            return None
    else:
        made = made_once(draft, call.func)
        if made is None or full_name(draft, made.func) != "torch.nn.CosineSimilarity" or len(call.args) != 2:
            return None
        first, second = call.args
        given = argument(made, "dim", ("dim", "eps"))
        if argument(made, "eps", ("dim", "eps")) is not None:
            return None
    dim = _dimension(given.value) if given is not None else 1
    if first is None or second is None or dim is None:
        return None
    return Pairing(COSINE, call, first.value, second.value, dim)


# Parts of expressions -------------------------------------------------------------------------------------------------


def _method(
    draft: Draft, call: cst.Call, name: str, parameters: Sequence[str]
) -> tuple[cst.BaseExpression, dict[str, cst.BaseExpression]] | None:
    """``x.name(…)`` or ``torch.name(x, …)``: x, and the other arguments by their parameters."""
    function = _function(draft, call, f"torch.{name}", parameters)
    if function is not None or not isinstance(call.func, cst.Attribute) or call.func.attr.value != name:
        return function
    of = call.func.value
    if isinstance(of, (cst.Name, cst.Attribute)) and full_name(draft, of).partition(".")[0] in ("torch", "numpy"):
        return None
    given = _given(call.args, parameters)
    return (of, given) if given is not None else None


def _function(
    draft: Draft, call: cst.Call, name: str, parameters: Sequence[str]
) -> tuple[cst.BaseExpression, dict[str, cst.BaseExpression]] | None:
    """``name(x, …)``: x, and the other arguments by their parameters."""
    if full_name(draft, call.func) != name or not call.args or call.args[0].keyword is not None or call.args[0].star:
        return None
    given = _given(call.args[1:], parameters)
    return (call.args[0].value, given) if given is not None else None


def _given(args: Sequence[cst.Arg], parameters: Sequence[str]) -> dict[str, cst.BaseExpression] | None:
    if any(each.star for each in args) or len([each for each in args if each.keyword is None]) > len(parameters):
        return None
    return {
        each.keyword.value if each.keyword is not None else parameters[place]: each.value
        for place, each in enumerate(args)
    }


def _value(draft: Draft, node: cst.BaseExpression, names: list[Statement]) -> cst.BaseExpression:
    """What a name stands for that the statement right before gives it, for this one use; put into `names`."""
    if not isinstance(node, cst.Name):
        return node
    scope, statement = scope_of(draft, node), draft.statement(names[-1] if names else node)
    if isinstance(scope, cst.ClassDef) or not isinstance(statement, cst.SimpleStatementLine):
        return node  # others may ask for it, or it is asked for again and again
    if not names and any(isinstance(each, cst.BaseComp) for each in _up_to(draft, node, statement)):
        return node
    siblings = draft.siblings(statement)
    before = siblings[siblings.index(statement) - 1] if siblings.index(statement) else None
    if before is None:
        return node
    bound = list(assignments(draft, node.value, scope))
    uses = [each for each in draft.nodes(cst.Name, scope) if each.value == node.value]
    if len(bound) == 1 and bound[0] is not None and len(uses) == 2:
        value = bound[0] if draft.statement(bound[0]) is before else None
    else:
        value = _bound_again(draft, node, uses, before)
    if value is None:
        return node
    names.append(before)
    return value


def _bound_again(
    draft: Draft, node: cst.Name, uses: Sequence[cst.Name], before: Statement
) -> cst.BaseExpression | None:
    """``x[:, None]`` of ``x = x[:, None]`` right before, in a function in which `node` alone reads x after it.

    Without that statement x is what it was before.
    """
    scope = scope_of(draft, node)
    made = before.body[0] if isinstance(before, cst.SimpleStatementLine) and len(before.body) == 1 else None
    if not isinstance(scope, cst.FunctionDef) or not isinstance(made, cst.Assign) or len(made.targets) != 1:
        return None
    target, value = made.targets[0].target, made.value
    if not isinstance(target, cst.Name) or target.value != node.value or target not in uses:
        return None
    if any(isinstance(each, (cst.For, cst.While, cst.Try)) for each in _up_to(draft, before, scope)):
        return None
    if is_bound_elsewhere(draft, node.value):
        return None  # it is another scope's
    named = [each for each in uses if not isinstance(draft.parent(each), cst.Param)]
    if any(scope_of(draft, each) is not scope for each in named):
        return None  # of a function within, which may be called later
    if any(isinstance(above, cst.GeneratorExp) for each in named for above in _up_to(draft, each, scope)):
        return None  # likewise
    within = [each for each in named if value in (each, *draft.ancestors(each))]
    behind = named[named.index(target) + 1 :]
    return value if within and [each for each in behind if each not in within] == [node] else None


def _up_to(draft: Draft, node: cst.CSTNode, last: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes around `node` below `last`."""
    for above in draft.ancestors(node):
        if above is last:
            return
        yield above


def _dimension(node: cst.BaseExpression | None) -> int | None:
    """A dimension written as a number, also as the only one of a list."""
    if isinstance(node, (cst.List, cst.Tuple)) and len(node.elements) == 1:
        node = node.elements[0].value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = _dimension(node.expression)
        return -inner if inner is not None else None
    return int(node.value) if isinstance(node, cst.Integer) and node.value.isdigit() else None


# Dimensions -----------------------------------------------------------------------------------------------------------


def _gives(node: cst.BaseExpression) -> bool:
    """Whether an expression gives a tensor another dimension."""
    inner = _expanded(node)
    return _unsqueezed(inner) is not None or any(map(_is_none, _elements(inner)))


def _side(node: cst.BaseExpression, dimensions: int) -> Side | None:
    """`node`, of so many dimensions, taken apart; None where that is not certain."""
    inner = _expanded(node)
    if inner is not node and len(cst.ensure_type(node, cst.Call).args) != dimensions:
        return None  # it may get further dimensions there
    unsqueezed, elements = _unsqueezed(inner), _elements(inner)
    if unsqueezed is not None:
        value, place = unsqueezed
        given = frozenset([place % dimensions]) if -dimensions <= place < dimensions else frozenset()
    elif any(map(_is_none, elements)):
        value = cst.ensure_type(inner, cst.Subscript).value
        dots = next((at for at, each in enumerate(elements) if m.matches(each, m.Index(m.Ellipsis()))), len(elements))
        if not all(_is_none(each) or _is_all(each) or at == dots for at, each in enumerate(elements)):
            return None
        behind = dimensions - len(elements)
        given = frozenset(at if at < dots else behind + at for at, each in enumerate(elements) if _is_none(each))
    else:
        return Side(node, node, dimensions, frozenset()) if inner is node else None
    below = _side(value, dimensions - len(given)) if given else None
    if below is None:
        return None
    rest = [at for at in range(dimensions) if at not in given]
    return Side(node, below.value, dimensions, given | {rest[at] for at in below.given})


def _expanded(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` of ``x.expand(…)`` where x gives a dimension: the pairs are written out all the same."""
    if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("expand")))):
        inner = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
        return inner if _unsqueezed(inner) is not None or any(map(_is_none, _elements(inner))) else node
    return node


def _unsqueezed(node: cst.BaseExpression) -> tuple[cst.BaseExpression, int] | None:
    if not m.matches(node, m.Call(func=m.Attribute(attr=m.Name("unsqueeze")))):
        return None
    call = cst.ensure_type(node, cst.Call)
    given = _dimension(call.args[0].value) if len(call.args) == 1 and not call.args[0].star else None
    return (cst.ensure_type(call.func, cst.Attribute).value, given) if given is not None else None


def _elements(node: cst.BaseExpression) -> list[cst.BaseSlice]:
    return [each.slice for each in node.slice] if isinstance(node, cst.Subscript) else []


def _is_none(element: cst.BaseSlice) -> bool:
    return isinstance(element, cst.Index) and (get_full_name_for_node(element.value) or "") in _NONE


def _is_all(element: cst.BaseSlice) -> bool:
    return isinstance(element, cst.Slice) and element.lower is element.upper is element.step is None


def _letters(side: Side, whole: int) -> str:
    """The dimensions that a tensor itself has, of those that both have together, as letters of an einsum."""
    left = whole - side.dimensions
    return "".join(_LETTERS[left + at] for at in range(side.dimensions) if at not in side.given)


# What does without ----------------------------------------------------------------------------------------------------


def _product(
    draft: Draft,
    found: Pairing,
    both: tuple[Side, Side],
    values: tuple[str, str],
    sides: tuple[str, str],
    summed: str,
    result: str,
) -> str | None:
    if found.kind == COSINE:
        normalize = _name_there(draft, found.whole, f"{_FUNCTIONAL}.normalize")
        if normalize is None or any(each[-1] != summed for each in sides):
            return None
        values = f"{normalize}({values[0]}, dim=-1)", f"{normalize}({values[1]}, dim=-1)"
        tight = values
    else:
        tight = _tight(both[0].value, values[0]), _tight(both[1].value, values[1])
    ordered = _rows(sides, summed, result)
    if ordered is not None:
        first, second = ordered
        return f"{tight[first]} @ {tight[second]}.mT"  # a function may be called with batches of them elsewhere
    for first, second in ((0, 1), (1, 0)):
        if sides[first] == result[:-1] + summed and sides[second] == result[:-2] + summed + result[-1]:
            return f"{tight[first]} @ {tight[second]}"
    einsum = _name_there(draft, found.whole, "torch.einsum")
    return f'{einsum}("{sides[0]},{sides[1]}->{result}", {values[0]}, {values[1]})' if einsum else None


def _distance(
    draft: Draft, found: Pairing, values: tuple[str, str], sides: tuple[str, str], summed: str, result: str
) -> str | None:
    ordered = _rows(sides, summed, result)
    if ordered is None or (found.kind == MANHATTAN and _is_written(draft, found.whole)):
        return None  # cdist keeps what it gives for the backward
    cdist = _name_there(draft, found.whole, "torch.cdist")
    if cdist is None:
        return None
    given = ", ".join((values[ordered[0]], values[ordered[1]], "p=1" if found.kind == MANHATTAN else _EXACT))
    return f"{cdist}({given})" + (".square()" if found.kind == SQUARES else "")


def _is_written(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether what an expression gives is written to in place: ``d = …; d.fill_diagonal_(0)``."""
    above = draft.parent(node)
    if isinstance(above, cst.Attribute) and is_in_place(above.attr.value):
        return True
    targets = [plain_name(each.target) for each in above.targets] if isinstance(above, cst.Assign) else []
    function = draft.function(node)
    return any(plain_name(each) in targets for each in written_in_place(draft, function))


def _name_there(draft: Draft, node: cst.CSTNode, dotted: str) -> str | None:
    """How to write `dotted` at `node`; None where the name means something else there: ``N, F = x.shape``."""
    written = ensure_name(draft, dotted)
    first, scope = written.partition(".")[0], scope_of(draft, node)
    while scope is not draft.module:
        if is_parameter(scope, first) or any(True for _ in assignments(draft, first, scope)):
            return None
        scope = scope_of(draft, scope)
    targets = (each for target in draft.nodes(cst.AssignTarget) for each in elements(target.target))
    return None if any(m.matches(each, m.Name(first)) for each in targets) else written


def _rows(sides: tuple[str, str], summed: str, result: str) -> tuple[int, int] | None:
    """Which of two tensors has the result's rows and which its columns, where both have what is summed last."""
    if any(len(each) < 2 or each[-1] != summed for each in sides):
        return None
    for first, second in ((0, 1), (1, 0)):
        row, column = sides[first][-2], sides[second][-2]
        batch = result[:-2]
        if result == batch + row + column and sides[first][:-2] == batch and sides[second][:-2] in (batch, ""):
            return first, second
    return None


def _tight(node: cst.BaseExpression, code: str) -> str:
    """The code of an operand, in parentheses where it needs them."""
    plain = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar
    return code if plain else f"({code})"
