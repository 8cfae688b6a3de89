"""``torch.linalg.svd(A)`` whose surplus columns nothing reads gets ``full_matrices=False``, or becomes ``svdvals``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import ensure_name, full_name
from advisor.edit.scopes import assignments, is_bound_elsewhere, is_parameter, is_target, scope_of, variables

_SVD = "torch.linalg.svd"
_PARAMETERS = ("A", "full_matrices")
_FACTORS = {"U": 0, "S": 1, "Vh": 2}


@dataclass(frozen=True)
class Decomposition:
    """A call whose surplus columns nothing reads. ``values``: what gives the singular values, where they are all.

    That is the call's part or its line's targets; None where a factor is read, too.
    """

    call: cst.Call
    given: str
    values: cst.CSTNode | None


def decompositions(
    draft: Draft, line: int, dimensions: int, short: int, surplus: Sequence[int]
) -> list[Decomposition | cst.Call]:
    """The decompositions in the function that begins at `line` (0: outside of all).

    `dimensions` are those of the tensor, `short` the number of singular values, `surplus` the factors (0: U, 2: Vh)
    that have more columns than that. A plain call where such columns are read, or that cannot be told.
    """
    calls = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func) == _SVD]
    return [
        _found(draft, each, dimensions, short, surplus) or each for each in calls if draft.function_line(each) == line
    ]


def reduce(draft: Draft, found: Decomposition) -> None:
    """Have the call give the reduced factors."""
    draft.replace(found.call, f"{draft.code(found.call.func)}({found.given}, full_matrices=False)")


def values_alone(draft: Draft, found: Decomposition) -> None:
    """Have the call give the singular values alone."""
    module = draft.code(found.call.func).rpartition(".")[0]
    function = f"{module}.svdvals" if module else ensure_name(draft, "torch.linalg.svdvals")
    code = f"{function}({found.given})"
    if isinstance(found.values, cst.Tuple):
        draft.replace(found.call, code)
        draft.replace(found.values, draft.code(found.values.elements[1].value))
    elif found.values is not None:
        draft.replace(found.values, code)


def _found(draft: Draft, call: cst.Call, dimensions: int, short: int, surplus: Sequence[int]) -> Decomposition | None:
    known = all(each.keyword is None or each.keyword.value in _PARAMETERS for each in call.args)
    matrix = argument(call, "A", _PARAMETERS)
    if has_starred(call) or unpacked(call) or len(call.args) > 2 or matrix is None or not known:
        return None
    reads = _reads(draft, call)
    if reads is None or "#" in draft.code(call):
        return None
    factors, values = reads
    for at in surplus:
        if not all(_within(draft, each, at, dimensions, short) for each in factors[at]):
            return None
    alone = not factors[0] and not factors[2] and not _deleted(draft, values)
    return Decomposition(call, draft.code(matrix.value), values if alone else None)


def _deleted(draft: Draft, targets: cst.CSTNode) -> bool:
    """Whether ``del U, Vh`` takes a name away, which has to be there."""
    if not isinstance(targets, cst.Tuple):
        return False
    names = {name.value for each in targets.elements for name in draft.nodes(cst.Name, each)}
    scope = scope_of(draft, targets)
    return any(name.value in names for each in draft.nodes(cst.Del, scope) for name in draft.nodes(cst.Name, each))


def _reads(draft: Draft, call: cst.Call) -> tuple[list[list[cst.CSTNode]], cst.CSTNode] | None:
    """What reads U, S and Vh, and what singular values would take the place of; None where that cannot be told."""
    factors: list[list[cst.CSTNode]] = [[], [], []]
    above = draft.parent(call)
    if isinstance(above, cst.Assign) and above.value is call:
        target = above.targets[0].target
        if len(above.targets) != 1 or not isinstance(target, cst.Tuple) or len(target.elements) != 3:
            return None
        for at, each in enumerate(target.elements):
            read = _of_name(draft, each.value) if isinstance(each.value, cst.Name) else None
            if read is None or isinstance(each, cst.StarredElement):
                return None
            factors[at] = read
        return factors, target
    number = m.Integer("0") | m.Integer("1") | m.Integer("2")
    if isinstance(above, cst.Attribute) and above.value is call and above.attr.value in _FACTORS:
        place = _FACTORS[above.attr.value]
    elif isinstance(above, cst.Subscript) and m.matches(
        above, m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=number))])
    ):
        place = int(draft.code(above.slice[0].slice))
    else:
        return None
    outer = draft.parent(above)
    if isinstance(outer, cst.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0].target, cst.Name):
        read = _of_name(draft, outer.targets[0].target)
        if read is None:
            return None
        factors[place] = read or [above]
    else:
        factors[place] = [above]
    return factors, above


def _of_name(draft: Draft, target: cst.Name) -> list[cst.CSTNode] | None:
    """Where a name is read that is bound there alone; nothing where nobody reads it, however often it is bound."""
    scope, name = scope_of(draft, target), target.value
    there: list[cst.CSTNode] = [each for each in variables(draft, name, scope) if not is_target(draft, each)]
    if isinstance(scope, cst.ClassDef) or is_bound_elsewhere(draft, name):
        return None
    if not there:
        return there
    alone = len(list(assignments(draft, name, scope))) == 1 and not is_parameter(scope, name)
    return there if alone else None


def _within(draft: Draft, read: cst.CSTNode, factor: int, dimensions: int, short: int) -> bool:
    """Whether of U's columns, or Vh's rows, no more are read there than there are singular values."""
    above = draft.parent(read)
    if not isinstance(above, cst.Subscript) or above.value is not read:
        return False
    elements = [each.slice for each in above.slice]
    axis = dimensions - 1 if factor == 0 else dimensions - 2
    if isinstance(elements[0], cst.Index) and m.matches(elements[0].value, m.Ellipsis()):
        axis -= dimensions - len(elements)
        axis = axis if axis > 0 else -1
    if not 0 <= axis < len(elements) or any(
        not isinstance(each, (cst.Index, cst.Slice)) or (isinstance(each, cst.Index) and not _plain(each.value))
        for each in elements
    ):
        return False
    cut = elements[axis]
    if isinstance(cut, cst.Index):
        at = _number(draft, cut.value)
        return at is not None and at < short
    if not isinstance(cut, cst.Slice) or cut.upper is None or cut.step is not None:
        return False
    end = _number(draft, cut.upper)
    begin = 0 if cut.lower is None else _number(draft, cut.lower)
    return end is not None and begin is not None and end <= short


def _plain(node: cst.BaseExpression) -> bool:
    """Whether an index takes one dimension, so that those behind it are where they seem."""
    return isinstance(node, (cst.Integer, cst.Ellipsis))


def _number(draft: Draft, node: cst.BaseExpression) -> int | None:
    """A number that is written there, or is a constant of the file."""
    if isinstance(node, cst.Integer):
        return int(node.evaluated_value)
    if not isinstance(node, cst.Name) or is_bound_elsewhere(draft, node.value):
        return None
    bound = [each for each in variables(draft, node.value) if is_target(draft, each)]
    values = list(assignments(draft, node.value, draft.module))
    parameters = any(is_parameter(each, node.value) for each in draft.nodes(cst.FunctionDef))
    once = len(bound) == len(values) == 1 and not parameters
    return int(values[0].evaluated_value) if once and isinstance(values[0], cst.Integer) else None
