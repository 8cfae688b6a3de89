"""Gram matrices, ``x @ x.mT``, as the source has them, and the same of a matrix that is turned first."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from advisor.edit.algebra.diagonals import product_sides, transposed
from advisor.edit.draft import Draft
from advisor.edit.names import last_part, plain_name
from advisor.edit.scopes import scope_of, variables

_IDENTITY = re.compile(r"\beye\b|\bidentity\b|\bI\b")
# What makes a matrix as large as the Gram matrix: in front of a loop it would stay as large as it was.
_MAKES = re.compile(r"\b(eye|diag\w*|ones|zeros|full|empty|rand\w*|triu|tril)\(")

_TURNED = "is_tall"
_TRANSPOSES = ("mT", "T", "t", "transpose")


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
    """Whether all that becomes of it is the square of its distance from the identity.

    ``((x @ x.mT - eye) ** 2).sum()`` has the same gradient for ``x.mT``, and differs by rows less columns.
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
    return bool(_IDENTITY.search(draft.code(other))) and _is_squared(draft, distance)


def _is_squared(draft: Draft, node: cst.BaseExpression) -> bool:
    """``(node) ** 2``, ``node.square()``, ``node.pow(2)``, ``torch.square(node)``; or of its norm."""
    above = draft.parent(node)
    call = draft.parent(above) if isinstance(above, (cst.Arg, cst.Attribute)) else None
    if call is None:
        return isinstance(above, cst.BinaryOperation) and above.left is node and _is_power(draft, above)
    if not isinstance(call, cst.Call):
        return False
    name = last_part(call.func)
    if name == "pow":
        return draft.code(call.args[-1].value) == "2"
    return name == "square" or (name == "norm" and _is_squared(draft, call))


def _is_power(draft: Draft, node: cst.BinaryOperation) -> bool:
    return isinstance(node.operator, cst.Power) and draft.code(node.right) == "2"


def turn(draft: Draft, gram: Gram) -> str:
    """Have the matrix of a loop's Gram matrix be turned where it has more rows than columns; why not, as a clause.

    For ``for …: s = x @ x.mT; x = a * x + (b * s + c * s @ s) @ x``, with ``return x`` behind it.
    """
    function, loop = draft.function(gram.product), draft.loop(gram.product)
    if function is None or loop is None or not isinstance(function.body, cst.IndentedBlock):
        return "the matrix is not multiplied in a loop of a function"
    statements = list(function.body.body)
    if loop not in statements or not gram.matrix.isidentifier():
        return "the matrix is not multiplied in a loop of a function"
    sides = product_sides(draft, gram.product)
    if sides is None or draft.code(sides[0]) != gram.matrix:
        return "it is the matrix of the columns"
    behind = statements[statements.index(loop) + 1 :]
    if _MAKES.search(draft.code(function)):
        return "the function makes matrices of its own"
    if variables(draft, _TURNED, function):
        return f"{_TURNED} is a name of its own there"
    last = behind[0] if len(behind) == 1 else None
    if not isinstance(last, cst.SimpleStatementLine) or not isinstance(last.body[-1], cst.Return):
        return "what becomes of the matrix behind the loop cannot be told"
    made = {each.target.value for each in draft.nodes(cst.AssignTarget, loop) if isinstance(each.target, cst.Name)}
    if not _turns_with(draft, loop, gram.matrix, made):
        return "something else in the loop may be of the matrix's shape"
    read = {each.value for each in draft.nodes(cst.Name, last)}
    if gram.matrix not in read or read & (made - {gram.matrix}) or len(draft.nodes(cst.Return, function)) > 1:
        return "what becomes of the matrix behind the loop cannot be told"
    back = f"if {_TURNED}:\n    {gram.matrix} = {gram.matrix}.mT"
    draft.insert_before(loop, f"{_TURNED} = {gram.matrix}.size(-2) > {gram.matrix}.size(-1)", back)
    draft.insert_before(last, back)
    return ""


def _turns_with(draft: Draft, loop: cst.For | cst.While, matrix: str, made: set[str]) -> bool:
    """Whether a round reads the matrix, what it makes of it, and numbers alone, and asks for no rows or columns."""
    unlike = (cst.AugAssign, cst.AnnAssign, cst.Break, cst.Continue, cst.NamedExpr, cst.If, cst.IfExp)
    if loop.orelse is not None or any(draft.nodes(kind, loop) for kind in unlike):
        return False
    head = loop.iter if isinstance(loop, cst.For) else loop.test
    if any(each.value in made | {matrix} for each in draft.nodes(cst.Name, head)):
        return False
    function = draft.function(loop)
    for name in draft.nodes(cst.Name, loop.body):
        above = draft.parent(name)
        if isinstance(above, cst.Attribute) and above.attr is name:
            continue
        if name.value in made | {matrix}:
            if isinstance(above, cst.Attribute) and above.attr.value not in _TRANSPOSES:
                return False
        elif name.value != "torch" and not _is_number(draft, name.value, function):
            return False
    return True


def _is_number(draft: Draft, name: str, function: cst.FunctionDef | None) -> bool:
    """Whether a name has one of several values that are given out together, ``a, b, c = COEFFS``, or a number."""
    found = False
    for assign in draft.nodes(cst.Assign):
        for target in (each.target for each in assign.targets):
            if isinstance(target, cst.Tuple) and any(draft.code(each.value) == name for each in target.elements):
                found = isinstance(assign.value, (cst.Name, cst.Attribute)) or (
                    isinstance(assign.value, cst.Tuple) and all(map(_is_literal, assign.value.elements))
                )
            elif isinstance(target, cst.Name) and target.value == name:
                found = _is_literal(cst.Element(assign.value))
            else:
                continue
            if not found:
                return False
    parameters = function.params.params if function is not None else ()
    given = [each.default for each in parameters if each.name.value == name]
    return found if not given else given[0] is not None and _is_literal(cst.Element(given[0]))


def _is_literal(element: cst.BaseElement) -> bool:
    value = element.value.expression if isinstance(element.value, cst.UnaryOperation) else element.value
    return isinstance(value, (cst.Integer, cst.Float))
