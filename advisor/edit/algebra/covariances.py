"""Covariances that are given to ``MultivariateNormal`` and whose factor is at hand: ``L @ L.mT``, a diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import assigned_once, held_once, is_parameter, scope_of

_MADE = ("torch.distributions.MultivariateNormal", "torch.distributions.multivariate_normal.MultivariateNormal")
_DIAGONALS = ("torch.diag_embed", "torch.diag")
_PRODUCTS = ("torch.matmul", "torch.bmm", "torch.mm")
_FACTORED = ("torch.linalg.cholesky", "torch.cholesky")  # upper=True aside
_POSITIVE = ("softplus", "exp", "sigmoid")
_TRANSPOSES = (("-1", "-2"), ("-2", "-1"), ("1", "2"), ("2", "1"))


@dataclass(frozen=True)
class Covariance:
    """The argument of a distribution that is a covariance, and its factor's code; whether that is one for certain.

    ``held``: the line that gives the covariance its name, where nothing else needs it. ``parts``: the code of a matrix
    and of a diagonal, where the covariance is the matrix by its own transpose plus that diagonal.
    """

    call: cst.Call
    argument: cst.Arg
    factor: str
    certain: bool
    held: cst.SimpleStatementLine | None
    parts: tuple[str, str] | None = None

    @property
    def diagonal(self) -> bool:
        """Whether it is that of a diagonal, which a call makes; that of a product is a name."""
        return self.factor.endswith(")")


def covariances(draft: Draft, line: int | None = None) -> Iterator[Covariance]:
    """Those in the function that begins at `line` (0: outside of all), or in the whole file."""
    for call in draft.nodes(cst.Call):
        if line not in (None, draft.function_line(call)) or full_name(draft, call.func) not in _MADE:
            continue
        argument = _argument(call)
        if argument is None:
            continue
        given = argument.value
        held = held_once(draft, given) if isinstance(given, cst.Name) else None
        meant = held[0] if held is not None else _meant(draft, given)
        factor, certain = _factor(draft, meant)
        # What is computed elsewhere may be of something else there than it would be here.
        here = held is not None or not isinstance(given, cst.Name)
        line_of = held[1] if held is not None else None
        yield Covariance(call, argument, factor, certain and here, line_of, _parts(draft, meant))


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
    if any(each.star for each in call.args) or sum(each.keyword is None for each in call.args) > 2:
        return None
    for at, each in enumerate(call.args):
        if (each.keyword is None and at == 1) or (
            each.keyword is not None and each.keyword.value == "covariance_matrix"
        ):
            return each
    return None


def _meant(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a name stands for that is given its value once, and not by who calls."""
    if isinstance(node, cst.Name) and not is_parameter(scope_of(draft, node), node.value):
        return assigned_once(draft, node.value, scope_of(draft, node)) or node
    return node


def _factor(draft: Draft, node: cst.BaseExpression) -> tuple[str, bool]:
    """The code of the factor, "" where it is not seen, and whether it is lower triangular for certain."""
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _DIAGONALS and len(node.args) == 1:
        given = node.args[0].value
        plain = isinstance(given, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) and not node.args[0].star
        code = draft.code(given) if plain else f"({draft.code(given)})"
        return f"{draft.code(node.func)}({code}.sqrt())", True
    two = _two(draft, node)
    if (
        two is None
        or not isinstance(two[0], (cst.Name, cst.Attribute))
        or _transposed(draft, two[1]) != draft.code(two[0])
    ):
        return "", False
    return draft.code(two[0]), _is_lower(draft, _meant(draft, two[0]))


def _parts(draft: Draft, node: cst.BaseExpression) -> tuple[str, str] | None:
    """(V, d) of ``V @ V.mT + torch.diag_embed(d)``, either way round; of ``c * torch.eye(n)`` the c."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Add):
        return None
    for product, other in ((node.left, node.right), (node.right, node.left)):
        two = _two(draft, _meant(draft, product))
        diagonal = _diagonal(draft, _meant(draft, other))
        named = two is not None and isinstance(two[0], (cst.Name, cst.Attribute))
        if two is not None and named and diagonal and _transposed(draft, two[1]) == draft.code(two[0]):
            return draft.code(two[0]), diagonal
    return None


def _diagonal(draft: Draft, node: cst.BaseExpression) -> str:
    """The code of what stands on the diagonal of a matrix that has nothing else."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(other, cst.Call) and full_name(draft, other.func) == "torch.eye":
                return draft.code(factor)
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _DIAGONALS and len(node.args) == 1:
        return draft.code(node.args[0].value)
    return ""


def _two(draft: Draft, node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The two operands of a product of matrices."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return node.left, node.right
    if isinstance(node, cst.Call) and full_name(draft, node.func) in _PRODUCTS and len(node.args) == 2:
        return node.args[0].value, node.args[1].value
    return None


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
    """Whether an expression is for certain a lower triangle with what is positive on its diagonal."""
    node = _meant(draft, node)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        one, other = _meant(draft, node.left), _meant(draft, node.right)
        return (_is_below(draft, one) and _is_positive_diagonal(draft, other)) or (
            _is_below(draft, other) and _is_positive_diagonal(draft, one)
        )
    if not isinstance(node, cst.Call):
        return False
    if full_name(draft, node.func) in _FACTORED:
        return len(node.args) == 1
    # A function of this file that gives one.
    own = isinstance(node.func, cst.Name) or m.matches(node.func, m.Attribute(m.Name("self")))
    made = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == last_part(node.func)]
    if not own or len(made) != 1 or not depth:
        return False
    given = [each.value for each in draft.nodes(cst.Return, made[0]) if draft.function(each) is made[0]]
    return bool(given) and all(each is not None and _is_lower(draft, each, depth - 1) for each in given)


def _is_below(draft: Draft, node: cst.BaseExpression) -> bool:
    """``x.tril(-1)``, ``torch.tril(x, diagonal=-1)``: nothing on the diagonal, nor above it."""
    if not isinstance(node, cst.Call) or last_part(node.func) != "tril" or not node.args:
        return False
    last = node.args[-1]
    named = last.keyword is None or last.keyword.value == "diagonal"
    return named and m.matches(last.value, m.UnaryOperation(m.Minus(), m.Integer("1")))


def _is_positive_diagonal(draft: Draft, node: cst.BaseExpression) -> bool:
    whole = isinstance(node, cst.Call) and full_name(draft, node.func) in _DIAGONALS and len(node.args) == 1
    return whole and _is_positive(draft, cst.ensure_type(node, cst.Call).args[0].value)


def _is_positive(draft: Draft, node: cst.BaseExpression, depth: int = 3) -> bool:
    """Whether all numbers of an expression are positive for certain: ``F.softplus(x) + 0.1``, ``x.exp()``."""
    node = _meant(draft, node)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Multiply)) and depth:
        return _is_positive(draft, node.left, depth - 1) and _is_positive(draft, node.right, depth - 1)
    if isinstance(node, (cst.Integer, cst.Float)):
        return float(node.value) > 0
    return isinstance(node, cst.Call) and last_part(node.func) in _POSITIVE
