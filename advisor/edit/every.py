"""What is done under ``if step % n == 0:``, and more seldom once ``n`` is another number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import calls_of
from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import last_part
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import bound_to, give_value, is_bound, last_name_of
from advisor.edit.scopes import is_literal, is_parameter, is_target, parse_number, scope_of, string_value, variables
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

_DEPTH = 3  # functions that call one another
_REMAINDER = m.BinaryOperation(operator=m.Modulo())
_COMPARED = m.Comparison(left=_REMAINDER, comparisons=[m.ComparisonTarget(comparator=m.Integer("0"))])
_DONE = m.Comparison(comparisons=[m.ComparisonTarget(m.Equal(), m.Integer("0"))])
_SKIPPED = m.Comparison(comparisons=[m.ComparisonTarget(m.NotEqual() | m.GreaterThan(), m.Integer("0"))])
_PLUS_ONE = m.BinaryOperation(operator=m.Add() | m.Subtract(), right=m.Integer())
# What counts steps, and nothing else, by its name.
_COUNTS = re.compile(r"(?i)^_*([ikntj]|it|.*(step|iter|batch|idx|count|tick).*)$")
_COUNTS_NOT = re.compile(r"(?i)epoch|rank|size|len|worker|hash|sample|shard")
# Calls that train, or choose what is trained with, or what is kept: they are not made more seldom.
_TRAINS = re.compile(
    r"(?i)backward|^step$|zero_grad|apply_grad|train|(^|_)fit|learn|optim|update|extend|load|copy|lerp|teacher|"
    r"(^|_)ema(_|$)|(?<!f)sync|reduce|gather|barrier|sampl|collect|rollout|perm|shuffl|prune|adjust|(^|_)lr|sched|eval|"
    r"valid|(^|_)val|test|early|stop|best|^set|augment|(^|_)next|reset|[^_]_$"
)
# Loops over the parts of one thing; any other may be the one over the steps.
_PARTS = re.compile(r"parameters\(|modules\(|children\(|buffers\(|layers|items\(|zip\(|weights|params")
_READS_BACK = re.compile(r"\b(load|load_state_dict|load_checkpoint|from_pretrained)\(")


@dataclass(frozen=True)
class _Guard:
    """``n`` of a condition, in the file `draft`, and the statements that it decides about."""

    draft: Draft
    every: cst.BaseExpression
    done: tuple[cst.CSTNode, ...]


def done_every(drafts: Drafts, site: Site, steps: int, now: int = 1, epoch: int | None = None) -> str | None:
    """Have what is done at `site`, every `now` steps, be done every so many `steps`, where a number decides that.

    The number is looked for around the line, around the one call of its function, and in the function that begins at
    the line or that it calls. It has to be `now`, and to decide about nothing else; what it decides about may only
    report: names that it binds are read nowhere else, no attribute is set, nothing is trained, drawn, or chosen. An
    `epoch` has so many steps, if that is known.

    Returns EDITED, the option of the command line, or None where no such number is known, as
    :func:`~advisor.edit.origins.values.give` does.
    """
    try:
        draft = drafts[site.file]
        node = _at(draft, site)
        guard = _around(drafts, draft, node, _DEPTH) if node is not None else None
        guard = guard or (_inside(drafts, draft, node) if node is not None else None)
        if guard is not None and _ends_before(drafts, guard, steps, epoch):
            return None  # it would be done never
        if guard is None or not _only_reports(drafts, guard) or not _is_alone(drafts, guard, now):
            return None
        return give_value(drafts, guard.draft, guard.every, str(steps), now)
    except (TooManyFilesError, AdvisorError):
        return None


def every_of(test: cst.BaseExpression, skips: bool = False) -> cst.BaseExpression | None:
    """``n`` of ``step % n == 0`` or ``not step % n``, of which more may be asked; with `skips` of ``step % n``."""
    if not skips and isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return every_of(test.left) or every_of(test.right)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return every_of(test.expression, not skips)
    remainder = test
    if m.matches(test, _COMPARED) and m.matches(test, _SKIPPED if skips else _DONE):
        remainder = cst.ensure_type(test, cst.Comparison).left
    elif not skips:
        return None
    if not isinstance(remainder, cst.BinaryOperation) or not m.matches(remainder, _REMAINDER):
        return None
    counter = remainder.left
    if m.matches(counter, _PLUS_ONE):
        counter = cst.ensure_type(counter, cst.BinaryOperation).left
    name = last_part(counter)
    return remainder.right if _COUNTS.match(name) and not _COUNTS_NOT.search(name) else None


def _at(draft: Draft, site: Site) -> cst.CSTNode | None:
    """The function, statement or call that begins on the line; a function begins with its decorators."""
    for function in draft.nodes(cst.FunctionDef):
        if site.line in (draft.line(function), *(draft.line(each) for each in function.decorators)):
            return function
    kinds = (cst.SimpleStatementLine, cst.For, cst.With, cst.Call)
    return next((each for kind in kinds for each in draft.nodes(kind) if draft.line(each) == site.line), None)


def _around(drafts: Drafts, draft: Draft, node: cst.CSTNode, depth: int) -> _Guard | None:
    inner = node
    for above in draft.ancestors(node) if depth else ():
        if isinstance(above, cst.If) and inner is above.body and (every := every_of(above.test)) is not None:
            return _Guard(draft, every, (above.body,)) if above.orelse is None else None
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            block: list[cst.CSTNode] = list(above.body)
            leaves = _leaves(draft, above)
            for index, each in enumerate(block[: block.index(inner)]):
                if leaves is not None and (every := _left_unless(each, leaves)) is not None:
                    return _Guard(draft, every, tuple(block[index + 1 :]))
        if isinstance(above, (cst.For, cst.While)) and inner is above.body:
            over = draft.code(above.iter) if isinstance(above, cst.For) else ""
            if not _PARTS.search(over):
                return None
        if isinstance(above, cst.FunctionDef):
            calls = calls_of(drafts, draft, above)
            return _around(drafts, *calls[0], depth - 1) if calls and len(calls) == 1 else None
        if isinstance(above, (cst.ClassDef, cst.Lambda, cst.BaseComp)):
            return None
        inner = above
    return None


def _inside(drafts: Drafts, draft: Draft, node: cst.CSTNode) -> _Guard | None:
    """The number by which all is done that the function does which begins, or is called, there."""
    if isinstance(node, cst.FunctionDef):
        return _whole(draft, node)
    if not isinstance(node, cst.SimpleStatementLine):
        return None
    calls = draft.nodes(cst.Call, node)
    name = last_part(calls[0].func) if len(calls) == 1 else ""
    users = with_word(drafts, draft, name) if name else ()
    found = [(of, each) for of in users for each in of.nodes(cst.FunctionDef) if each.name.value == name]
    if len(found) != 1 or not any(call is calls[0] for _, call in calls_of(drafts, *found[0]) or ()):
        return None
    return _whole(*found[0])


def _whole(draft: Draft, function: cst.FunctionDef) -> _Guard | None:
    """The number that decides about all of a function but what gives names a value."""
    body = list(function.body.body)
    for index, each in enumerate(body):
        if isinstance(each, cst.If) and each.orelse is None:
            if (every := _left_unless(each, cst.Return)) is not None:
                return _Guard(draft, every, tuple(body[index + 1 :]))
            last = index == len(body) - 1
            return _Guard(draft, every, (each.body,)) if last and (every := every_of(each.test)) is not None else None
        plain = isinstance(each, cst.SimpleStatementLine) and m.matches(each.body[0], m.Assign() | m.Expr())
        calls = [call for call in draft.nodes(cst.Call, each) if not m.findall(call.func, m.Name("super"))]
        if not plain or calls:
            return None
    return None


def _leaves(draft: Draft, block: cst.CSTNode) -> type[cst.CSTNode] | None:
    """What leaves out the rest of a block and no more: ``continue`` of a loop's body, ``return`` of a function's."""
    holder = draft.parent(block)
    if isinstance(holder, (cst.For, cst.While)):
        return cst.Continue if block is holder.body else None
    return cst.Return if isinstance(holder, cst.FunctionDef) else None


def _left_unless(statement: cst.CSTNode, leaves: type[cst.CSTNode]) -> cst.BaseExpression | None:
    """``n`` of ``if step % n: return``, or ``continue``."""
    if not isinstance(statement, cst.If) or statement.orelse is not None or len(statement.body.body) != 1:
        return None
    (only,) = statement.body.body
    small = only.body[0] if isinstance(only, cst.SimpleStatementLine) and len(only.body) == 1 else only
    if not isinstance(small, leaves) or (isinstance(small, cst.Return) and small.value is not None):
        return None
    return every_of(statement.test, skips=True)


# What is done.


def _only_reports(drafts: Drafts, guard: _Guard) -> bool:
    """Whether nothing else depends on what is done, as far as the text tells."""
    draft, done = guard.draft, guard.done
    ends = (cst.Return, cst.Break, cst.Continue, cst.Raise, cst.Yield, cst.Await, cst.Global, cst.Nonlocal, cst.Del)
    if any(draft.nodes(kind, each) for kind in ends for each in done):
        return False
    inside = {id(name) for each in done for name in draft.nodes(cst.Name, each)}
    bound = {name.value for each in done for name in draft.nodes(cst.Name, each) if _binds(draft, name)}
    scope = scope_of(draft, done[0])
    if any(id(read) not in inside for name in bound for read in variables(draft, name, scope)):
        return False
    return all(_is_harmless(drafts, draft, each, _DEPTH, set()) for each in done)


def _is_harmless(drafts: Drafts, draft: Draft, node: cst.CSTNode, depth: int, seen: set[str]) -> bool:
    """Whether no attribute is set, nothing is trained, drawn or chosen, nor by what it calls of the script's."""
    for target in (*draft.nodes(cst.Attribute, node), *draft.nodes(cst.Subscript, node)):
        if is_target(draft, target):
            return False
    for call in draft.nodes(cst.Call, node):
        name = last_part(call.func)
        if _TRAINS.search(name):
            return False
        if name == "save" and _READS_BACK.search(draft.source.text):
            return False  # what was saved is read again, and may then not be there
        if not depth or name in seen or not name:
            continue
        seen.add(name)
        for of in with_word(drafts, draft, name):
            for function in of.nodes(cst.FunctionDef):
                if function.name.value == name and not _is_harmless(drafts, of, function.body, depth - 1, seen):
                    return False
    return True


def _binds(draft: Draft, name: cst.Name) -> bool:
    above = draft.parent(name)
    return is_target(draft, name) or isinstance(above, (cst.ImportAlias, cst.FunctionDef, cst.ClassDef))


def _ends_before(drafts: Drafts, guard: _Guard, steps: int, epoch: int | None) -> bool:
    """Whether the loop that counts, ``for step in range(50)`` or ``range(1, 51)``, is over before so many steps.

    A number of batches goes on through the epochs around it, unless each of them counts anew, and an option has another
    value than its default.
    """
    draft, remainder = guard.draft, guard.draft.parent(guard.every)
    left = draft.nodes(cst.Name, remainder.left) if isinstance(remainder, cst.BinaryOperation) else []
    counted = {each.value for each in left}
    around = [each for each in draft.ancestors(guard.every) if isinstance(each, (cst.For, cst.While, cst.FunctionDef))]
    later = isinstance(remainder, cst.BinaryOperation) and m.matches(remainder.left, _PLUS_ONE)
    for place, each in enumerate(around):
        numbered = _numbered(draft, each)
        if numbered is not None and numbered[0] in counted:
            again = any(isinstance(outer, (cst.For, cst.While)) for outer in around[place + 1 :])
            # Each epoch begins with a zero, if nothing is added to it; a function may be called for each.
            return (later or numbered[1]) and (epoch < steps if epoch is not None else again)
    loop = next((each for each in around if isinstance(each, cst.For) and draft.code(each.target) in counted), None)
    if loop is None or not m.matches(loop.iter, m.Call(m.Name("range"), [m.Arg(), m.AtMostN(m.Arg(), n=1)])):
        return False
    bounds = cst.ensure_type(loop.iter, cst.Call).args
    end, over = bounds[-1].value, len(bounds) > 1 and not later  # the last number is one less
    if isinstance(end, cst.BinaryOperation) and m.matches(end, m.BinaryOperation(operator=m.Add(), right=m.Integer())):
        end, over = end.left, False
    number = origin_of(drafts, draft, end)
    last = parse_number(number.node) if number is not None and not number.option else None
    return last is not None and last - over < steps


def _numbered(draft: Draft, loop: cst.CSTNode) -> tuple[str, bool] | None:
    """``i`` of ``for i, x in enumerate(xs):``, and whether it begins with another number than zero, maybe."""
    if not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Tuple):
        return None
    if not isinstance(loop.iter, cst.Call) or not m.matches(loop.iter.func, m.Name("enumerate")):
        return None
    return draft.code(loop.target.elements[0].value), len(loop.iter.args) > 1


# The number.


def _is_alone(drafts: Drafts, guard: _Guard, now: int) -> bool:
    """Whether the number is written once, read by this condition, and by nothing else."""
    draft, every = guard.draft, guard.every
    if is_literal(every):
        return True
    origin = origin_of(drafts, draft, every, now)
    if origin is not None and (not origin.says(now) or origin.converted):
        return False
    names = {last_name_of(every)}
    if origin is not None and origin.option:
        call = origin.node if isinstance(origin.node, cst.Call) else origin.draft.parent(origin.node)
        call = origin.draft.parent(call) if isinstance(call, cst.Arg) else call
        if not isinstance(call, cst.Call) or argument(call, "choices") is not None:
            return False
        names.add(origin.option.lstrip("-").replace("-", "_"))
    elif origin is not None:
        names.add(bound_to(origin.draft, origin.node))
    uses, handed_on = 0, 0
    for name in names - {""}:
        for user in with_word(drafts, draft, name):
            for node in _reads(user, name):
                above = user.parent(node)
                if node is every or above is every:
                    uses += 1
                elif isinstance(above, (cst.Arg, cst.Assign, cst.AnnAssign)):
                    handed_on += 1
                elif not isinstance(above, cst.Index) or not _is_looked_up(user, above, every):
                    return False
    return bool(names - {""}) and uses <= 1 and handed_on <= _most_handed_on(draft, every)


def _most_handed_on(draft: Draft, every: cst.BaseExpression) -> int:
    """How often a number is handed on from where it is written to the condition: an argument, which an object keeps."""
    if isinstance(every, cst.Attribute) and draft.code(every.value) == "self":
        return 2
    return int(isinstance(every, cst.Name) and is_parameter(scope_of(draft, every), every.value))


def _reads(draft: Draft, name: str) -> Iterable[cst.BaseExpression]:
    """Where a file reads a name, an attribute of that name, or an item by such a key."""
    for node in draft.nodes(cst.Name):
        if node.value == name and not is_bound(draft, node):
            above = draft.parent(node)
            yield above if isinstance(above, cst.Attribute) and above.attr is node else node
    for string in draft.nodes(cst.SimpleString):
        if string_value(string) == name and not isinstance(draft.parent(string), cst.DictElement):
            yield string


def _is_looked_up(draft: Draft, index: cst.Index, every: cst.BaseExpression) -> bool:
    """Whether a key is that of the number itself: ``config["every"]``."""
    return any(above is every for above in draft.ancestors(index))
