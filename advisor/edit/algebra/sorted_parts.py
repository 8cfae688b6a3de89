"""``torch.sort(x)[0][:, :k]`` and the like become ``torch.topk(x, k)``: an order of which the beginning is read."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, plain_name
from advisor.edit.scopes import assignments, bound_behind, is_parameter, scope_of, variables

_SORTS, _ORDERS = ("torch.sort",), ("torch.argsort",)
_PARAMETERS = ("input", "dim", "descending")
_RESULTS = {"values": 0, "indices": 1}


@dataclass(frozen=True)
class SortedPart:
    """A call that sorts, of which only the first ``count`` along ``dim`` are read.

    ``parts``: the slices, each with what is left of it to be taken, "" for nothing. ``order_alone``: an argsort.
    """

    call: cst.Call
    given: str
    dim: str
    largest: bool
    count: str
    parts: tuple[tuple[cst.Subscript, str], ...]
    order_alone: bool


def sorted_parts(draft: Draft, line: int, dimensions: int) -> list[SortedPart | cst.Call]:
    """The calls that sort in the function that begins at `line` (0: outside of all), `dimensions` those of the tensor.

    A plain call where the beginning is not all that is read, or that cannot be told.
    """
    found: list[SortedPart | cst.Call] = []
    for call in draft.nodes(cst.Call):
        if draft.function_line(call) != line:
            continue
        order = _sorts(draft, call)
        if order is not None:
            found.append(_part(draft, call, dimensions, order) or call)
    return found


def take_first(draft: Draft, found: SortedPart) -> None:
    """Have the call find the first ones alone."""
    function = draft.code(found.call.func).rpartition(".")[0]
    begins = f"{function}.topk({found.given}, " if _is_function(draft, found.call) else f"{found.given}.topk("
    code = f"{begins}{found.count}, dim={found.dim}, largest={found.largest})"
    draft.replace(found.call, code + (".indices" if found.order_alone else ""))
    for part, written in found.parts:
        draft.change(part, functools.partial(_with_slice, written=written))


def _with_slice(updated: cst.CSTNode, written: str) -> cst.CSTNode:
    """``x[written]`` of ``x[…]``, ``x`` of it where nothing is left to be taken."""
    part = cst.ensure_type(updated, cst.Subscript)
    if not written:
        return part.value
    return part.with_changes(slice=cst.ensure_type(cst.parse_expression(f"_[{written}]"), cst.Subscript).slice)


def _is_function(draft: Draft, call: cst.Call) -> bool:
    return full_name(draft, call.func) in (*_SORTS, *_ORDERS)


def _sorts(draft: Draft, call: cst.Call) -> bool | None:
    """Whether a call gives the order alone (argsort); None for one that does not sort a tensor."""
    name = full_name(draft, call.func)
    if name in (*_SORTS, *_ORDERS):
        return name in _ORDERS
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if method not in ("sort", "argsort") or (plain_name(call.func) and name.startswith(("numpy.", "torch."))):
        return None
    return method == "argsort"


def _part(draft: Draft, call: cst.Call, dimensions: int, order_alone: bool) -> SortedPart | None:
    parameters = _PARAMETERS if _is_function(draft, call) else _PARAMETERS[1:]
    known = {"input", "dim", "descending"}
    if has_starred(call) or unpacked(call) or len(call.args) > len(parameters):
        return None
    if any(each.keyword is not None and each.keyword.value not in known for each in call.args):
        return None
    dim, descending = (argument(call, name, parameters) for name in ("dim", "descending"))
    axis = _number(dim.value) if dim is not None else -1
    largest = m.matches(descending.value, m.Name("True")) if descending is not None else False
    if axis is None or (descending is not None and not m.matches(descending.value, m.Name("True") | m.Name("False"))):
        return None
    if _is_function(draft, call):
        first = argument(call, "input", parameters)
        tensor = first.value if first is not None else None
    else:
        tensor = cst.ensure_type(call.func, cst.Attribute).value
    reads = _reads(draft, call, order_alone)
    axis = axis % dimensions if -dimensions <= axis < dimensions else -1
    # Of fewer numbers than are wanted, in a last batch, a slice gives all, and topk an error: so it is asked how many.
    if tensor is None or not plain_name(tensor) or not reads or axis < 0 or "#" in draft.code(call):
        return None
    ends: set[str] = set()
    parts = []
    for read in reads:
        cut = _cut(draft, read, axis, dimensions)
        later = draft.line(read) > draft.line(call) and any(bound_behind(draft, each, call) for each in read.slice)
        if cut is None or later:
            return None
        ends.add(cut[0])
        parts.append((read, cut[1]))
    if len(ends) != 1:
        return None
    written_dim = "-1" if axis == dimensions - 1 else str(axis)
    given = draft.code(tensor)
    count = f"min({ends.pop()}, {given}.shape[{written_dim}])"
    return SortedPart(call, given, written_dim, largest, count, tuple(parts), order_alone)


def _reads(draft: Draft, call: cst.Call, order_alone: bool) -> list[cst.Subscript] | None:
    """The slices that read what a call gives; None where it is read otherwise, too."""
    node: cst.CSTNode = call
    above = draft.parent(node)
    if isinstance(above, cst.Assign) and above.value is call:
        if len(above.targets) != 1:
            return None
        target = above.targets[0].target
        if isinstance(target, cst.Name):
            return _of_name(draft, target, whole=not order_alone)
        names = [each.value for each in target.elements] if isinstance(target, cst.Tuple) and not order_alone else []
        if len(names) != 2 or not all(isinstance(each, cst.Name) for each in names):
            return None
        both = [_of_name(draft, cst.ensure_type(each, cst.Name), whole=False) for each in names]
        return [read for each in both if each is not None for read in each] if None not in both else None
    if not order_alone:
        if not _is_result(draft, node):
            return None
        node = draft.parent(node) or node
        above = draft.parent(node)
        if isinstance(above, cst.Assign) and above.value is node and len(above.targets) == 1:
            target = above.targets[0].target
            return _of_name(draft, target, whole=False) if isinstance(target, cst.Name) else None
    above = draft.parent(node)
    return [above] if isinstance(above, cst.Subscript) and above.value is node else None


def _is_result(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether ``[0]``, ``[1]``, ``.values`` or ``.indices`` follows."""
    above = draft.parent(node)
    if isinstance(above, cst.Attribute):
        return above.value is node and above.attr.value in _RESULTS
    number = m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=m.Integer("0") | m.Integer("1")))])
    return isinstance(above, cst.Subscript) and above.value is node and m.matches(above, number)


def _of_name(draft: Draft, target: cst.Name, whole: bool) -> list[cst.Subscript] | None:
    """The slices by which a name is read that is bound there alone; `whole`: it has values and order."""
    scope = scope_of(draft, target)
    there = variables(draft, target.value, scope)
    # Read outside of its scope, or bound twice, it may be something else's.
    outside = isinstance(scope, cst.Module) and any(draft.function(each) is not None for each in there)
    if is_parameter(scope, target.value) or isinstance(scope, cst.ClassDef) or outside:
        return None
    if len(list(assignments(draft, target.value, scope))) != 1:
        return None
    found: list[cst.Subscript] = []
    for each in there:
        if each is target:
            continue
        node: cst.CSTNode = each
        if whole:
            if not _is_result(draft, node):
                return None
            node = draft.parent(node) or node
        above = draft.parent(node)
        if not isinstance(above, cst.Subscript) or above.value is not node:
            return None
        found.append(above)
    return found


def _cut(draft: Draft, read: cst.Subscript, axis: int, dimensions: int) -> tuple[str, str] | None:
    """(end, what is left of the slice) of ``[:, a:b]`` along `axis`; "" for a slice that takes all of what is left."""
    elements = [each.slice for each in read.slice]
    if any(isinstance(each, cst.Index) and m.matches(each.value, m.Ellipsis()) for each in elements[:1]):
        places = [dimensions - len(elements) + at for at in range(len(elements))]
        places[0] = -1
    else:
        places = list(range(len(elements)))
    if axis not in places:
        return None
    written, end = [], ""
    for place, each, element in zip(places, elements, read.slice, strict=True):
        code = draft.code(element).strip().rstrip(",").strip()
        if place == axis:
            if not isinstance(each, cst.Slice) or each.step is not None or each.upper is None or _negative(each.upper):
                return None
            if each.lower is not None and (_number(each.lower) is None or (_number(each.lower) or 0) < 0):
                return None
            end = draft.code(each.upper)
            lower = draft.code(each.lower) if each.lower is not None and _number(each.lower) else ""
            code = f"{lower}:"
        elif isinstance(each, cst.Index) and place >= 0:
            return None  # fewer dimensions come out: left to the author
        written.append(code)
    plain = all(code in (":", "...") for code in written)
    return end, "" if plain else ", ".join(written)


def _negative(node: cst.BaseExpression) -> bool:
    """Whether an end counts from behind, or may."""
    return isinstance(node, cst.UnaryOperation) or not isinstance(
        node, (cst.Integer, cst.Name, cst.Attribute, cst.BinaryOperation)
    )


def _number(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return int(node.evaluated_value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = _number(node.expression)
        return None if inner is None else -inner
    return None
