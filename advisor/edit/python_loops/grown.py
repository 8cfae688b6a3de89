"""What a loop joins to all that came before is kept in a list instead, and joined once behind the loop.

``x = torch.cat([x, y])`` copies all of ``x`` in each round: n rounds copy n²/2 of what is joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, as_primary, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import ensure_name, fresh_name, full_name, last_part
from advisor.edit.scopes import is_bound_elsewhere, is_literal, scope_of, variables

# Functions that join what the first argument lists, and by what method that is copied.
_JOINS = {
    **dict.fromkeys(("torch.cat", "torch.concat", "torch.concatenate", "torch.vstack", "torch.hstack"), "clone"),
    **dict.fromkeys(("numpy.concatenate", "numpy.vstack", "numpy.hstack"), ""),
    "pandas.concat": "copy",
}
_RESHAPE = frozenset(("torch.vstack", "numpy.vstack"))
_APPEND = "numpy.append"
# Methods and functions whose result nobody else has, so that nobody changes it later.
_NEW = frozenset((
    "clone", "copy", "item", "tolist", "sum", "mean", "argmax", "argmin", "softmax", "log_softmax", "sigmoid", "stack",
    "one_hot", "zeros", "ones", "full", "rand", "randn", "randint",
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
    function, written, kept = full_name(draft, call.func), draft.code(call.func), _kept(draft, grown)
    rest = "".join(f", {draft.code(each.with_changes(comma=cst.MaybeSentinel.DEFAULT))}"
                   for each in call.args[2 if function == _APPEND else 1:])  # fmt: skip
    if function == _APPEND and argument(call, "axis", ("arr", "values", "axis")) is None:
        kept = f"{ensure_name(draft, 'numpy.ravel')}({kept})"
        joined = f"{written}({name}, {ensure_name(draft, 'numpy.concatenate')}({parts}))"
        # With nothing to join concatenate() raises.
        after = f"if {parts}:\n    {name} = {joined}"
    else:
        join = ensure_name(draft, "numpy.concatenate") if function == _APPEND else written
        after = f"{name} = {join}([{name}, *{parts}]{rest})"
        if function in _RESHAPE:  # also what stands there alone
            after = f"if {parts}:\n    {after}"
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
    inner: cst.CSTNode = grown.loop
    for above in draft.ancestors(grown.loop):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        # What a loop has so far is read where an exception or Ctrl-C ends it.
        if isinstance(above, cst.Try) and len(variables(draft, grown.name, inner)) < len(known):
            return "the loop may be left before its end"
        inner = above
    if "#" in draft.code(grown.assign):
        return "comments stand between what is joined"
    return ""


def _kept(draft: Draft, grown: _Grown) -> str:
    """What is joined, as it is now: a copy where the rest of the round, or the next, may change it.

    Joining copies it as well, and a part of a larger one would keep all of it.
    """
    part, code = grown.part, draft.code(grown.part)
    function = full_name(draft, grown.call.func)
    if isinstance(part, cst.BinaryOperation) or (isinstance(part, cst.Call) and last_part(part.func) in _NEW):
        return code
    if function.startswith("numpy."):
        array = isinstance(part, cst.Call) and last_part(part.func) == "numpy"
        # It joins lists and tensors, too; numpy.array() of a tensor warns.
        return f"{code if array else ensure_name(draft, 'numpy.asarray') + f'({code})'}.copy()"
    return f"{draft.code(as_primary(part))}.{_JOINS[function]}()"
