"""Gram matrices, ``x @ x.mT``, as the source has them, and the same of a matrix that is turned first."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from advisor.edit.algebra.diagonals import product_sides, transposed
from advisor.edit.draft import Draft
from advisor.edit.names import plain_name
from advisor.edit.scopes import scope_of, variables

_SQUARES = re.compile(r"\*\*\s*2\b|\.square\(|\.pow\(\s*2|\bmse_loss\(|\bMSELoss\b|\btorch\.square\(")
_IDENTITY = re.compile(r"\beye\b|\bidentity\b|\b[Ii]\b")
# What makes a matrix as large as the Gram matrix: in front of a loop it would stay as large as it was.
_MAKES = re.compile(r"\b(eye|diag\w*|ones|zeros|full|empty|rand\w*|triu|tril)\(")

_TURNED = "is_tall"


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
    statement = draft.statement(gram.product)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    code, body = draft.code(statement), statement.body[0]
    if isinstance(body, cst.Assign) and body.value is gram.product and isinstance(body.targets[0].target, cst.Name):
        made = body.targets[0].target
        uses = [each for each in variables(draft, made.value, scope_of(draft, gram.product)) if each is not made]
        if len(uses) != 1 or (there := draft.statement(uses[0])) is None:
            return False
        code = draft.code(there)
    return bool(_SQUARES.search(code) and _IDENTITY.search(code))


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
    read = {each.value for each in draft.nodes(cst.Name, last)}
    if gram.matrix not in read or read & (made - {gram.matrix}) or len(draft.nodes(cst.Return, function)) > 1:
        return "what becomes of the matrix behind the loop cannot be told"
    back = f"if {_TURNED}:\n    {gram.matrix} = {gram.matrix}.mT"
    draft.insert_before(loop, f"{_TURNED} = {gram.matrix}.size(-2) > {gram.matrix}.size(-1)", back)
    draft.insert_before(last, back)
    return ""
