"""Covariances that are given to ``MultivariateNormal`` and whose factor is at hand: ``L @ L.mT``, a diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.origin import assigned_once, held_once, scope_of

_MADE = ("torch.distributions.MultivariateNormal", "torch.distributions.multivariate_normal.MultivariateNormal")
_DIAGONALS = ("torch.diag_embed", "torch.diag")
_PRODUCTS = ("torch.matmul", "torch.bmm", "torch.mm")
_LOWER = ("torch.tril", "torch.linalg.cholesky", "torch.cholesky")
_TRANSPOSES = (("-1", "-2"), ("-2", "-1"), ("1", "2"), ("2", "1"))


@dataclass(frozen=True)
class Covariance:
    """The argument of a distribution that is a covariance, and its factor's code; whether that is one for certain.

    ``held``: the line that gives the covariance its name, where nothing else needs it.
    """

    call: cst.Call
    argument: cst.Arg
    factor: str
    certain: bool
    held: cst.SimpleStatementLine | None = None


def covariances(draft: Draft, line: int | None = None) -> Iterator[Covariance]:
    """Those in the function that begins at `line` (0: outside of all), or in the whole file."""
    for call in draft.nodes(cst.Call):
        if line not in (None, draft.function_line(call)) or full_name(draft, call.func) not in _MADE:
            continue
        argument = _argument(call)
        if argument is not None:
            named = held_once(draft, argument.value) if isinstance(argument.value, cst.Name) else None
            factor, certain = _factor(draft, _meant(draft, argument.value))
            yield Covariance(call, argument, factor, certain, named[1] if named is not None else None)


def factored(draft: Draft, found: Covariance) -> None:
    """Have the distribution be given the factor; comments within the call are lost."""
    arguments = [
        f"scale_tril={found.factor}" if each is found.argument else draft.code(each).strip().rstrip(",")
        for each in found.call.args
    ]
    draft.replace(found.call, f"{draft.code(found.call.func)}({', '.join(arguments)})")
    if found.held is not None:
        draft.remove(found.held)


def _argument(call: cst.Call) -> cst.Arg | None:
    for at, each in enumerate(call.args):
        if each.star:
            return None
        if (each.keyword is None and at == 1) or (
            each.keyword is not None and each.keyword.value == "covariance_matrix"
        ):
            return each
    return None


def _meant(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a name stands for that is given its value once."""
    if isinstance(node, cst.Name):
        return assigned_once(draft, node.value, scope_of(draft, node)) or node
    return node


def _factor(draft: Draft, node: cst.BaseExpression) -> tuple[str, bool]:
    """The code of the factor, "" where it is not seen, and whether it is lower triangular for certain."""
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _DIAGONALS and len(node.args) == 1:
        given = node.args[0].value
        plain = isinstance(given, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) and not node.args[0].star
        code = draft.code(given) if plain else f"({draft.code(given)})"
        return f"{draft.code(node.func)}({code}.sqrt())", True
    two: tuple[cst.BaseExpression, cst.BaseExpression] | None = None
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        two = node.left, node.right
    elif isinstance(node, cst.Call) and full_name(draft, node.func) in _PRODUCTS and len(node.args) == 2:
        two = node.args[0].value, node.args[1].value
    if (
        two is None
        or not isinstance(two[0], (cst.Name, cst.Attribute))
        or _transposed(draft, two[1]) != draft.code(two[0])
    ):
        return "", False
    return draft.code(two[0]), _is_lower(draft, _meant(draft, two[0]))


def _transposed(draft: Draft, node: cst.BaseExpression) -> str:
    """The code of what is transposed; "" where it is something else."""
    if isinstance(node, cst.Attribute) and node.attr.value in ("mT", "T", "mH"):
        return draft.code(node.value)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        given = tuple(draft.code(each.value) for each in node.args)
        if (node.func.attr.value == "transpose" and given in _TRANSPOSES) or (
            node.func.attr.value == "t" and not given
        ):
            return draft.code(node.func.value)
    return ""


def _is_lower(draft: Draft, node: cst.BaseExpression, depth: int = 3) -> bool:
    """Whether an expression is a lower triangular matrix for certain."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _is_lower(draft, node.left, depth) and _is_lower(draft, node.right, depth)
    if isinstance(node, cst.Name) and depth:
        value = _meant(draft, node)
        return value is not node and _is_lower(draft, value, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    if full_name(draft, node.func) in (*_LOWER, *_DIAGONALS):
        return True
    if not isinstance(node.func, (cst.Attribute, cst.Name)):
        return False
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else node.func.value
    own = isinstance(node.func, cst.Name) or m.matches(node.func.value, m.Name("self"))
    if name in ("tril", "diag_embed") and not own:
        return True
    # A function of this file that gives one.
    made = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == name]
    if not own or len(made) != 1 or not depth:
        return False
    given = [each.value for each in draft.nodes(cst.Return, made[0]) if draft.function(each) is made[0]]
    return bool(given) and all(each is not None and _is_lower(draft, each, depth - 1) for each in given)
