"""Gram matrices, ``x @ x.mT``, as the source has them, and the same of a matrix that is turned first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from advisor.edit.algebra.diagonals import product_sides, transposed
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part, plain_name
from advisor.edit.scopes import scope_of, variables

_TURNED = "is_tall"
_IDENTITY, _MOVES = ("eye", "identity", "I"), ("to", "type_as", "float")


@dataclass(frozen=True)
class Gram:
    """``product``: the expression; ``matrix``: what is multiplied with its transpose, a name."""

    product: cst.BaseExpression
    matrix: str


def grams(draft: Draft, line: int) -> list[Gram]:
    """The products of a matrix with its own transpose in the function that begins at `line` (0: outside of all)."""
    found = []
    for kind in (cst.BinaryOperation, cst.Call):
        for node in draft.nodes(kind):
            sides = product_sides(draft, node) if draft.function_line(node) == line else None
            for one, other in (sides, sides[::-1]) if sides is not None else ():
                if plain_name(one) and transposed(draft, other) == draft.code(one):
                    found.append(Gram(node, draft.code(one)))
                    break
    return sorted(found, key=lambda each: draft.line(each.product))


def is_penalty(draft: Draft, gram: Gram) -> bool:
    """Whether all that becomes of it is the sum of squares of its distance from the identity.

    ``((x @ x.mT - eye) ** 2).sum()`` has the same gradient for ``x.mT``, and differs by rows less columns. A mean has
    another one, by how many numbers it is of, and a mask another meaning.
    """
    statement, node = draft.statement(gram.product), gram.product
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    body = statement.body[0]
    if isinstance(body, cst.Assign) and body.value is gram.product and isinstance(body.targets[0].target, cst.Name):
        made = body.targets[0].target
        uses = [each for each in variables(draft, made.value, scope_of(draft, gram.product)) if each is not made]
        if len(uses) != 1:
            return False
        (node,) = uses
    distance = draft.parent(node)
    if not isinstance(distance, cst.BinaryOperation) or not isinstance(distance.operator, cst.Subtract):
        return False
    other = distance.right if distance.left is node else distance.left
    if isinstance(other, cst.Call) and isinstance(other.func, cst.Attribute) and other.func.attr.value in _MOVES:
        other = other.func.value
    return last_part(other.func if isinstance(other, cst.Call) else other) in _IDENTITY and _is_sum(draft, distance)


def _is_sum(draft: Draft, node: cst.BaseExpression) -> bool:
    """``(node ** 2).sum()``, ``node.square().sum()``, ``torch.sum(node.pow(2))``; the square of its norm."""
    name, call = _called_with(draft, node)
    if call is not None and name == "norm":
        alone = len(call.args) == (0 if isinstance(draft.parent(node), cst.Attribute) else 1)
        return alone and _square(draft, call) is not None
    square = _square(draft, node)
    name, call = _called_with(draft, square) if square is not None else ("", None)
    return call is not None and name == "sum" and len(call.args) == int(not _is_method(draft, square))


def _called_with(draft: Draft, node: cst.CSTNode | None) -> tuple[str, cst.Call | None]:
    """The call whose method, or whose only argument, `node` is: its name, and the call."""
    above = draft.parent(node) if node is not None else None
    call = draft.parent(above) if isinstance(above, (cst.Arg, cst.Attribute)) else None
    return (last_part(call.func), call) if isinstance(call, cst.Call) else ("", None)


def _is_method(draft: Draft, node: cst.CSTNode | None) -> bool:
    return node is not None and isinstance(draft.parent(node), cst.Attribute)


def _square(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``node ** 2``, ``node.square()``, ``node.pow(2)``, ``torch.square(node)``."""
    above = draft.parent(node)
    if isinstance(above, cst.BinaryOperation):
        power = above.left is node and isinstance(above.operator, cst.Power) and draft.code(above.right) == "2"
        return above if power else None
    name, call = _called_with(draft, node)
    if call is None or (name == "pow" and draft.code(call.args[-1].value) != "2"):
        return None
    return call if name in ("pow", "square") else None


def is_polynomial(draft: Draft, gram: Gram) -> bool:
    """Whether the statements from the Gram matrix on multiply the matrix with a polynomial of it, and do nothing else.

    Up to the one that does. Names that are given nothing there are taken for numbers: the shapes in a run tell.
    """
    for _, kind in _kinds(draft, gram, None):
        if kind == _MATRIX:
            return True
        if not kind:
            return False
    return False


def _kinds(draft: Draft, gram: Gram, numbers: Container[str] | None) -> Iterator[tuple[str, str]]:
    """(name, kind) of what each statement from the Gram matrix on gives a value, to the end of its block.

    "" for the kind of what is none; the name of a ``return`` is empty. `numbers`: those names that are known to be.
    """
    statement = draft.statement(gram.product)
    siblings = draft.siblings(statement) if statement is not None else []
    known = {gram.matrix: _MATRIX}
    for each in siblings[siblings.index(statement) :] if statement is not None and statement in siblings else ():
        body = each.body[0] if isinstance(each, cst.SimpleStatementLine) and len(each.body) == 1 else None
        name, value = "", body.value if isinstance(body, (cst.Assign, cst.Return)) else None
        if isinstance(body, cst.Assign):
            target = body.targets[0].target
            name = target.value if len(body.targets) == 1 and isinstance(target, cst.Name) else ""
        told = value is not None and bool(name or isinstance(body, cst.Return))
        known[name] = _kind(draft, value, known, numbers) if told and value is not None else ""
        yield name, known[name]


_MATRIX, _TURNED_MATRIX, _GRAM, _NUMBER = "matrix", "turned", "gram", "number"
_PRODUCTS = {
    (_MATRIX, _TURNED_MATRIX): _GRAM,
    (_GRAM, _GRAM): _GRAM,
    (_GRAM, _MATRIX): _MATRIX,
    (_TURNED_MATRIX, _GRAM): _TURNED_MATRIX,
}
_TURNS = {_MATRIX: _TURNED_MATRIX, _TURNED_MATRIX: _MATRIX, _GRAM: _GRAM}


def _kind(draft: Draft, node: cst.BaseExpression, kinds: Mapping[str, str], numbers: Container[str] | None) -> str:
    """What an expression of the matrix, of its Gram matrix and of numbers is; "" for anything that is none of these."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return _NUMBER
    if isinstance(node, cst.UnaryOperation):
        return _kind(draft, node.expression, kinds, numbers)
    if name := plain_name(node):
        if name in kinds:
            return kinds[name]
        turned = isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT")
        if turned and isinstance(node, cst.Attribute):
            return _TURNS.get(_kind(draft, node.value, kinds, numbers), "")
        return _NUMBER if numbers is None or name in numbers else ""
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and transposed(draft, node) != f"{draft.code(node)}.mT"
    ):
        given = node.args[0].value if full_name(draft, node.func).startswith("torch.") else node.func.value
        return _TURNS.get(_kind(draft, given, kinds, numbers), "")
    if (sides := product_sides(draft, node)) is not None:
        left, right = (_kind(draft, each, kinds, numbers) for each in sides)
        return _PRODUCTS.get((left, right), "")
    if not isinstance(node, cst.BinaryOperation):
        return ""
    left, right = (_kind(draft, each, kinds, numbers) for each in (node.left, node.right))
    if isinstance(node.operator, (cst.Add, cst.Subtract)):
        return left if left == right else ""
    if isinstance(node.operator, cst.Divide):
        return left if right == _NUMBER else ""
    if isinstance(node.operator, cst.Multiply) and _NUMBER in (left, right):
        return right if left == _NUMBER else left
    return ""


def turn(draft: Draft, gram: Gram) -> str:
    """Have the matrix of a loop's Gram matrix be turned where it has more rows than columns; why not, as a clause.

    For ``for …: s = x @ x.mT; x = a * x + (b * s + c * s @ s) @ x``, with ``return x`` behind it.
    """
    function, loop = draft.function(gram.product), draft.loop(gram.product)
    if function is None or not isinstance(loop, cst.For) or not isinstance(function.body, cst.IndentedBlock):
        return "the matrix is not multiplied in a loop of a function"
    statements = list(function.body.body)
    if loop not in statements or not gram.matrix.isidentifier():
        return "the matrix is not multiplied in a loop of a function"
    sides = product_sides(draft, gram.product)
    if sides is None or draft.code(sides[0]) != gram.matrix:
        return "it is the matrix of the columns"
    if not _multiplies_alone(draft, loop, gram, function):
        return "something else in the loop may be of the matrix's shape"
    if variables(draft, _TURNED, function):
        return f"{_TURNED} is a name of its own there"
    behind = statements[statements.index(loop) + 1 :]
    last = behind[0] if len(behind) == 1 else None
    if not isinstance(last, cst.SimpleStatementLine) or not isinstance(last.body[-1], cst.Return):
        return "what becomes of the matrix behind the loop cannot be told"
    made = {each.target.value for each in draft.nodes(cst.AssignTarget, loop) if isinstance(each.target, cst.Name)}
    read = {each.value for each in draft.nodes(cst.Name, last)}
    if gram.matrix not in read or read & (made - {gram.matrix}) or len(draft.nodes(cst.Return, function)) > 1:
        return "what becomes of the matrix behind the loop cannot be told"
    turned = f"if {_TURNED}:\n    {gram.matrix} = {gram.matrix}.mT"
    draft.insert_before(loop, f"{_TURNED} = {gram.matrix}.size(-2) > {gram.matrix}.size(-1)", turned)
    draft.insert_before(last, f"{turned}.contiguous()")  # as it was: somebody may take a view of it
    return ""


def _multiplies_alone(draft: Draft, loop: cst.For, gram: Gram, function: cst.FunctionDef) -> bool:
    """Whether a round does nothing but multiply the matrix with a polynomial of its Gram matrix."""
    names = {each.value for each in draft.nodes(cst.Name, loop.iter)}
    if loop.orelse is not None or not isinstance(loop.body, cst.IndentedBlock) or gram.matrix in names:
        return False
    numbers = {each.value for each in draft.nodes(cst.Name, loop.body) if _is_number(draft, each.value, function)}
    kinds = list(_kinds(draft, gram, numbers))
    whole = draft.statement(gram.product) is loop.body.body[0] and all(kind for _, kind in kinds)
    return whole and kinds[-1] == (gram.matrix, _MATRIX)


def _is_number(draft: Draft, name: str, function: cst.FunctionDef) -> bool:
    """Whether a function gives a name nothing but a number: ``a, b, c = 3.4, -4.8, 2.0``, or those of a constant."""
    parameters = function.params
    every = (*parameters.params, *parameters.kwonly_params, *parameters.posonly_params)
    if any(each.name.value == name for each in every):
        return False
    given = [value for assign in draft.nodes(cst.Assign, function) for value in _given(draft, assign, name)]
    return bool(given) and all(map(_is_literal, given))


def _given(draft: Draft, assign: cst.Assign, name: str) -> list[cst.BaseExpression | None]:
    """What an assignment gives a name, None for what cannot be told."""
    found: list[cst.BaseExpression | None] = []
    for target in (each.target for each in assign.targets):
        if isinstance(target, cst.Name) and target.value == name:
            found.append(assign.value)
        elif isinstance(target, cst.Tuple):
            value = _constant(draft, assign.value)
            for at, each in enumerate(target.elements):
                if draft.code(each.value) == name:
                    fits = isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements)
                    found.append(value.elements[at].value if isinstance(value, cst.Tuple) and fits else None)
    return found


def _constant(draft: Draft, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The value itself, or what the file gives a name outside of all functions, and nothing else does."""
    if not isinstance(value, cst.Name):
        return value
    given = [
        assign
        for assign in draft.nodes(cst.Assign)
        if any(isinstance(each.target, cst.Name) and each.target.value == value.value for each in assign.targets)
    ]
    return given[0].value if len(given) == 1 and draft.function(given[0]) is None else None


def _is_literal(value: cst.BaseExpression | None) -> bool:
    inner = value.expression if isinstance(value, cst.UnaryOperation) else value
    return isinstance(inner, (cst.Integer, cst.Float))
