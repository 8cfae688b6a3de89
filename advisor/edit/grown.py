"""What a loop joins to all that came before is kept in a list instead, and joined once behind the loop.

``x = torch.cat([x, y])`` copies all of ``x`` in each round: n rounds copy n²/2 of what is joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.in_place import written_in_place
from advisor.edit.names import bindings, fresh_name, full_name
from advisor.edit.scopes import is_bound_elsewhere, is_literal, scope_of, variables
from advisor.edit.sums import elements

# Functions that join what the first argument lists, and by what their result is copied.
_JOINS = {
    **dict.fromkeys(("torch.cat", "torch.concat", "torch.concatenate", "torch.vstack", "torch.hstack"), "clone"),
    **dict.fromkeys(("numpy.concatenate", "numpy.vstack", "numpy.hstack"), "copy"),
    "pandas.concat": "copy",
}
_APPEND = "numpy.append"
# Methods and functions whose result may share memory with what they are given.
_SAME = frozenset((
    "detach", "numpy", "cpu", "cuda", "to", "float", "double", "half", "long", "int", "type", "type_as", "view",
    "view_as", "reshape", "squeeze", "unsqueeze", "flatten", "ravel", "transpose", "permute", "t", "swapaxes", "data",
    "contiguous", "expand", "narrow", "select", "chunk", "split", "unbind", "real", "from_numpy", "as_tensor",
    "asarray", "requires_grad_",
))  # fmt: skip
_Loop = cst.For | cst.While


@dataclass(frozen=True)
class _Grown:
    """``name = cat([name, part])``, the one statement of `loop` that knows the name."""

    name: str
    assign: cst.Assign
    call: cst.Call
    part: cst.BaseExpression
    loop: _Loop


def joined_once(draft: Draft, within: cst.CSTNode) -> str:
    """Have what grows below `within` joined once; why not, as a clause, or ""."""
    found = list(_grown(draft, within))
    if len(found) != 1:
        return "what grows, and in which loop, cannot be told from the source"
    (grown,) = found
    if why := _stands_still(draft, grown):
        return why
    name, call = grown.name, grown.call
    parts = fresh_name(draft, f"{name}_parts")
    function, part = full_name(draft, call.func), draft.code(grown.part)
    written = draft.code(call.func)
    if function == _APPEND and argument(call, "axis", ("arr", "values", "axis")) is None:
        numpy = written.rpartition(".")[0]
        kept, joined = f"{numpy}.ravel({part})", f"{numpy}.append({name}, {numpy}.concatenate({parts}))"
        # With nothing to join concatenate() raises.
        after = f"if {parts}:\n    {name} = {joined}"
    else:
        copied = "copy" if function == _APPEND else _JOINS[function]
        # A part of a larger one would keep all of it.
        kept = f"{part}.{copied}()" if isinstance(grown.part, cst.Subscript) else part
        rest = "".join(f", {draft.code(each.with_changes(comma=cst.MaybeSentinel.DEFAULT))}"
                       for each in call.args[2 if function == _APPEND else 1:])  # fmt: skip
        join = f"{written.rpartition('.')[0]}.concatenate" if function == _APPEND else written
        after = f"{name} = {join}([{name}, *{parts}]{rest})"
    draft.insert_before(grown.loop, f"{parts} = []")
    kept_there = cst.Expr(cst.parse_expression(f"{parts}.append({kept})", draft.module.config_for_parsing))
    draft.change(grown.assign, lambda _: kept_there)
    draft.insert_after(grown.loop, after)
    return ""


def _grown(draft: Draft, within: cst.CSTNode) -> Iterator[_Grown]:
    for assign in draft.nodes(cst.Assign, within):
        target, call = assign.targets[0].target, assign.value
        if len(assign.targets) != 1 or not isinstance(target, cst.Name) or not isinstance(call, cst.Call):
            continue
        part = _joined(draft, call, target.value)
        line = draft.parent(assign)
        loop = _around(draft, assign, target.value)
        if part is not None and loop is not None and isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            yield _Grown(target.value, assign, call, part, loop)


def _joined(draft: Draft, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """``y`` of ``cat([x, y])`` and ``append(x, y)``, where x has that name and nothing else of the call has it."""
    function = full_name(draft, call.func)
    if has_starred(call) or unpacked(call) or not call.args or call.args[0].keyword is not None:
        return None
    if function == _APPEND:
        first = [each.value for each in call.args[:2] if each.keyword is None]
        rest = call.args[2:]
    elif function in _JOINS and isinstance(call.args[0].value, (cst.List, cst.Tuple)):
        listed = call.args[0].value.elements
        first = [each.value for each in listed if isinstance(each, cst.Element)] if len(listed) == 2 else []
        rest = call.args[1:]
    else:
        return None
    if len(first) != 2 or not m.matches(first[0], m.Name(name)) or variables(draft, name, first[1]):
        return None
    # How it is joined is the same in each round: a number or a word.
    return first[1] if all(is_literal(each.value) for each in rest) else None


def _around(draft: Draft, assign: cst.Assign, name: str) -> _Loop | None:
    """The outermost loop around the statement in which nothing else knows the name."""
    found, own = None, len(variables(draft, name, assign))
    loop = draft.loop(assign)
    while loop is not None and len(variables(draft, name, loop)) == own:
        found, loop = loop, draft.loop(loop)
    return found


def _stands_still(draft: Draft, grown: _Grown) -> str:
    """Why what is joined may be something else once the loop is over, in a clause; "" where each round makes it."""
    scope = scope_of(draft, grown.assign)
    known = variables(draft, grown.name, scope)
    if is_bound_elsewhere(draft, grown.name) or any(scope_of(draft, each) is not scope for each in known):
        return "another function may read what grows"
    if any(draft.nodes(kind, grown.loop) for kind in (cst.Yield, cst.Return, cst.Try)):
        return "the loop may be left before its end"
    if grown.loop.orelse is not None:
        return "the loop has an else"
    base = _whose(draft, grown.part)
    if base is not None:
        written = {each.value for each in written_in_place(draft, grown.loop) if isinstance(each, cst.Name)}
        if not isinstance(base, cst.Name) or base.value in written or base.value not in _bound(draft, grown.loop):
            return "what is joined may be changed in place later"
    return ""


def _whose(draft: Draft, part: cst.BaseExpression) -> cst.BaseExpression | None:
    """The name whose memory an expression may give; None where it computes what is new."""
    while True:
        if isinstance(part, (cst.Subscript, cst.Attribute)):
            part = part.value
        elif isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute) and part.func.attr.value in _SAME:
            own = bindings(draft).keys() & {draft.code(part.func.value)}  # torch.from_numpy(x), not x.numpy()
            part = part.args[0].value if own and part.args else part.func.value
        else:
            return part if isinstance(part, cst.Name) else None


def _bound(draft: Draft, loop: _Loop) -> set[str]:
    """The names that the rounds of a loop bind anew, to what they compute or as the loop's own variable."""
    names = {
        each.value for one in draft.nodes(cst.For, loop) for each in elements(one.target) if isinstance(each, cst.Name)
    }
    for assign in draft.nodes(cst.Assign, loop):
        if not isinstance(assign.value, (cst.Name, cst.Attribute, cst.Subscript)):
            bound = [each for one in assign.targets for each in elements(one.target)]
            names |= {each.value for each in bound if isinstance(each, cst.Name)}
    return names
