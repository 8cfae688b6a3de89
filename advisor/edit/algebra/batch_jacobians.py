"""``jacobian(f, x)`` of a whole batch, of which each sample's own part is read, becomes one of the outputs' sum.

What a sample's outputs change by with its own inputs is what the sum over the samples does: the others' parts are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from advisor.edit.calls import argument, as_primary, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import fresh_name, full_name
from advisor.edit.scopes import (
    assignments,
    is_bound_elsewhere,
    is_parameter,
    is_target,
    scope_of,
    string_value,
    variables,
)

_JACOBIAN = "torch.autograd.functional.jacobian"
_PARAMETERS = ("func", "inputs", "create_graph", "strict", "vectorize", "strategy")
_DIAGONAL = ("input", "offset", "dim1", "dim2")
_COUNTS = ("range", "torch.arange")


@dataclass(frozen=True)
class OwnParts:
    """A call, and what reads each sample's part of it. ``dimensions`` of outputs: 1, or 2 with several a sample.

    ``moved`` is what brings the dimensions of the Jacobian of the sum into the order that was read.
    """

    call: cst.Call
    read: cst.BaseExpression
    dimensions: int
    moved: str


def batch_jacobians(draft: Draft, line: int) -> list[OwnParts | cst.Call]:
    """The calls in the function that begins at `line` (0: outside of all); plain where more of them is read."""
    calls = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func) == _JACOBIAN]
    return [_found(draft, each) or each for each in calls if draft.function_line(each) == line]


def of_the_sum(draft: Draft, found: OwnParts) -> bool:
    """Have the Jacobian be taken of the sum over the samples; whether that can be written."""
    func = argument(found.call, "func", _PARAMETERS)
    if func is None or "#" in draft.code(found.call):
        return False
    total = "sum()" if found.dimensions == 1 else "sum(0)"
    if isinstance(func.value, (cst.Name, cst.Attribute)):
        name = fresh_name(draft, "given")
        code = f"lambda {name}: {draft.code(func.value)}({name}).{total}"
    elif isinstance(func.value, cst.Lambda):
        body = cst.Module([]).code_for_node(as_primary(func.value.body))
        code = draft.code(func.value.with_changes(body=cst.parse_expression(f"{body}.{total}")))
    else:
        return False
    above = draft.parent(found.read)
    outer: cst.CSTNode = found.read
    moved = found.moved
    around = draft.parent(above) if isinstance(above, cst.Attribute) else None
    if moved == ".movedim(0, -1)" and isinstance(above, cst.Attribute):  # turned back right away
        if above.attr.value in ("T", "mT"):
            outer, moved = above, ""
        elif above.attr.value == "t" and isinstance(around, cst.Call) and not around.args:
            outer, moved = around, ""
    holder = draft.parent(found.call)
    if isinstance(holder, cst.Assign):
        draft.replace(func.value, code)
        draft.replace(outer, f"{draft.code(holder.targets[0].target)}{moved}")
    else:
        changed = cst.ensure_type(found.call.deep_replace(func.value, cst.parse_expression(code)), cst.Call)
        draft.replace(outer, f"{draft.code(changed)}{moved}")
    return True


def _found(draft: Draft, call: cst.Call) -> OwnParts | None:
    known = all(each.keyword is None or each.keyword.value in _PARAMETERS for each in call.args)
    inputs = argument(call, "inputs", _PARAMETERS)
    if has_starred(call) or unpacked(call) or not known or inputs is None:
        return None
    if isinstance(inputs.value, (cst.Tuple, cst.List)) or argument(call, "vectorize", _PARAMETERS) is not None:
        return None
    if argument(call, "strategy", _PARAMETERS) is not None:
        return None
    part: cst.BaseExpression = call
    above = draft.parent(call)
    if isinstance(above, cst.Assign):
        name = above.targets[0].target
        if len(above.targets) != 1 or not isinstance(name, cst.Name) or not _once(draft, name):
            return None
        (read,) = [each for each in variables(draft, name.value, scope_of(draft, name)) if not is_target(draft, each)]
        if draft.loop(read) is not draft.loop(call):
            return None  # in a loop of its own the name would be read again and again
        part = read
    return _diagonal(draft, call, part) or _einsum(draft, call, part) or _indexed(draft, call, part)


def _once(draft: Draft, name: cst.Name) -> bool:
    """Whether a name is bound in one place, and read in one."""
    scope = scope_of(draft, name)
    if isinstance(scope, cst.ClassDef) or is_bound_elsewhere(draft, name.value) or is_parameter(scope, name.value):
        return False
    there = variables(draft, name.value, scope)
    reads = [each for each in there if not is_target(draft, each)]
    return len(reads) == 1 and len(there) == 2 and len(list(assignments(draft, name.value, scope))) == 1


def _diagonal(draft: Draft, call: cst.Call, part: cst.BaseExpression) -> OwnParts | None:
    """``torch.diagonal(part, dim1=0, dim2=1)``, or its method."""
    above = draft.parent(part)
    whole = draft.parent(above) if above is not None else None
    if not isinstance(whole, cst.Call) or has_starred(whole) or unpacked(whole):
        return None
    parameters: tuple[str, ...] = _DIAGONAL
    if isinstance(above, cst.Attribute) and above.attr.value == "diagonal" and whole.func is above:
        parameters = _DIAGONAL[1:]
    elif full_name(draft, whole.func) != "torch.diagonal" or argument(whole, "input", parameters) is not above:
        return None
    values = {name: argument(whole, name, parameters) for name in _DIAGONAL[1:]}
    offset, first, second = (draft.code(each.value) if each is not None else "" for each in values.values())
    if offset not in ("", "0") or first not in ("", "0") or second not in ("", "1", "2"):
        return None
    # Of several outputs: (outputs, samples, inputs) → (outputs, inputs, samples).
    several = second == "2"
    return OwnParts(call, whole, 2 if several else 1, ".movedim(1, -1)" if several else ".movedim(0, -1)")


def _einsum(draft: Draft, call: cst.Call, part: cst.BaseExpression) -> OwnParts | None:
    """``torch.einsum("iij->ij", part)``."""
    above = draft.parent(part)
    whole = draft.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(whole, cst.Call) or full_name(draft, whole.func) != "torch.einsum" or len(whole.args) != 2:
        return None
    text = whole.args[0].value
    if whole.args[1].value is not part:
        return None
    taken, _, made = string_value(text).replace(" ", "").partition("->")
    if not (taken.isalpha() and made.isalpha()) or len(set(made)) != len(made):
        return None
    for dimensions, moved in ((1, ""), (2, ".transpose(0, 1)")):
        again = taken[0] == taken[dimensions : dimensions + 1]
        if again and taken[:dimensions] + taken[dimensions + 1 :] == made and taken.count(taken[0]) == 2:
            return OwnParts(call, whole, dimensions, moved)
    return None


def _indexed(draft: Draft, call: cst.Call, part: cst.BaseExpression) -> OwnParts | None:
    """``part[rows, rows]`` or ``part[rows, :, rows]`` with all rows in their order."""
    above = draft.parent(part)
    if not isinstance(above, cst.Subscript) or above.value is not part:
        return None
    elements = [each.slice for each in above.slice]
    while elements and _is_all(elements[-1]):
        elements.pop()
    if len(elements) == 2:
        dimensions, rows = 1, elements
    elif len(elements) == 3 and _is_all(elements[1]):
        dimensions, rows = 2, [elements[0], elements[2]]
    else:
        return None
    codes = {draft.code(each.value) for each in rows if isinstance(each, cst.Index)}
    if len(codes) != 1 or not all(isinstance(each, cst.Index) for each in rows):
        return None
    first = cst.ensure_type(rows[0], cst.Index).value
    if isinstance(first, cst.Name):
        values = list(assignments(draft, first.value, scope_of(draft, first)))
        if len(values) != 1 or values[0] is None or is_bound_elsewhere(draft, first.value):
            return None
        first = values[0]
    counts = isinstance(first, cst.Call) and full_name(draft, first.func) in _COUNTS
    if not isinstance(first, cst.Call) or not counts or sum(each.keyword is None for each in first.args) != 1:
        return None
    length = first.args[0].value
    if isinstance(length, cst.Integer) or any(each.star for each in first.args):
        return None  # fewer rows than there are, perhaps
    return OwnParts(call, above, dimensions, "" if dimensions == 1 else ".transpose(0, 1)")


def _is_all(element: cst.BaseSlice) -> bool:
    return isinstance(element, cst.Slice) and element.lower is None and element.upper is None and element.step is None
