"""What is done under ``if step % n == 0:``, and more seldom once ``n`` is another number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import calls_of
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import last_part
from advisor.edit.values import give_value
from advisor.harness.layout import Site

_DEPTH = 4  # functions that call one another
_REMAINDER = m.BinaryOperation(operator=m.Modulo())
_COMPARED = m.Comparison(left=_REMAINDER, comparisons=[m.ComparisonTarget(comparator=m.Integer("0"))])
_DONE = m.Comparison(comparisons=[m.ComparisonTarget(m.Equal(), m.Integer("0"))])
_SKIPPED = m.Comparison(comparisons=[m.ComparisonTarget(m.NotEqual() | m.GreaterThan(), m.Integer("0"))])
_LEAVES = m.SimpleStatementLine(body=[m.Return(value=None) | m.Continue()])
# What belongs to a step, or decides how the training goes on, by its name.
_OF_THE_STEP = re.compile(
    r"^(backward|step|zero_grad|forward|training_step|train_step|train|fit|eval|evaluate|validate)$"
)


def done_every(drafts: Drafts, site: Site, steps: int) -> str | None:
    """Have what is done at `site`, now in each step, be done every so many `steps`, where a number decides that.

    The number is looked for around the line and around the calls of its function, then in the function that begins or
    is called there. Returns EDITED, the option of the command line, or None where no such number is known, as
    :func:`~advisor.edit.values.give` does.
    """
    draft = drafts[site.file]
    node = _at(draft, site)
    if node is None:
        return None
    try:
        every = _every_around(drafts, draft, node, _DEPTH)
        for of, function in _functions(drafts, draft, node) if every is None else ():
            every = every or _every_in(of, function)
        return give_value(drafts, *every, str(steps), 1, alone=True) if every is not None else None
    except TooManyFilesError:
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
    return remainder.right if m.matches(remainder, _REMAINDER) and isinstance(remainder, cst.BinaryOperation) else None


def _at(draft: Draft, site: Site) -> cst.CSTNode | None:
    """The function, statement or call that begins on the line."""
    kinds = (cst.FunctionDef, cst.SimpleStatementLine, cst.For, cst.With, cst.Call)
    return next((each for kind in kinds for each in draft.nodes(kind) if draft.line(each) == site.line), None)


def _functions(drafts: Drafts, draft: Draft, node: cst.CSTNode) -> Iterator[tuple[Draft, cst.FunctionDef]]:
    """The function itself, or those of the script's that a statement calls, each the only one of its name."""
    if isinstance(node, cst.FunctionDef):
        yield draft, node
        return
    for name in dict.fromkeys(last_part(each.func) for each in draft.nodes(cst.Call, node)):
        users = with_word(drafts, draft, name) if name else ()
        found = [(of, each) for of in users for each in of.nodes(cst.FunctionDef) if each.name.value == name]
        if len(found) == 1:
            yield found[0]


def _every_around(
    drafts: Drafts, draft: Draft, node: cst.CSTNode, depth: int
) -> tuple[Draft, cst.BaseExpression] | None:
    inner = node
    for above in draft.ancestors(node) if depth else ():
        if isinstance(above, cst.If) and inner is above.body and (every := every_of(above.test)) is not None:
            return (draft, every) if _may_be_seldom(draft, above, [above.body]) else None
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            block: list[cst.CSTNode] = list(above.body)
            place = block.index(inner)
            for each in block[:place]:
                every = _left_unless(each)
                if every is not None:
                    return (draft, every) if _may_be_seldom(draft, each, block[place:]) else None
        if isinstance(above, cst.FunctionDef):
            calls = calls_of(drafts, draft, above)
            return _every_around(drafts, *calls[0], depth - 1) if calls and len(calls) == 1 else None
        if isinstance(above, (cst.ClassDef, cst.Lambda)):
            return None
        inner = above
    return None


def _every_in(draft: Draft, function: cst.FunctionDef) -> tuple[Draft, cst.BaseExpression] | None:
    """The one number in a function that something is done by."""
    found = []
    for each in draft.nodes(cst.If, function.body):
        block = draft.siblings(each)
        after = block[block.index(each) + 1 :] if each in block else []
        if (left := _left_unless(each)) is not None and _may_be_seldom(draft, each, after):
            found.append(left)
        elif (every := every_of(each.test)) is not None and _may_be_seldom(draft, each, [each.body]):
            found.append(every)
    return (draft, found[0]) if len(found) == 1 else None


def _left_unless(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """``n`` of ``if step % n: return``."""
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return None
    block = statement.body.body
    leaves = len(block) == 1 and m.matches(block[0], _LEAVES | m.Return(value=None) | m.Continue())
    return every_of(statement.test, skips=True) if leaves else None


def _may_be_seldom(draft: Draft, condition: cst.CSTNode, done: Iterable[cst.CSTNode]) -> bool:
    """Whether what is done under a condition is no part of a step, nor what the training goes by."""
    if not isinstance(condition, cst.If) or condition.orelse is not None or "epoch" in draft.code(condition.test):
        return False
    return not any(_decides(draft, each) for each in done)


def _decides(draft: Draft, node: cst.CSTNode) -> bool:
    ends = [*draft.nodes(cst.Break, node), *_values_given_back(draft, node)]
    return bool(ends) or any(_OF_THE_STEP.match(last_part(each.func)) for each in draft.nodes(cst.Call, node))


def _values_given_back(draft: Draft, node: cst.CSTNode) -> Iterator[cst.Return]:
    return (each for each in draft.nodes(cst.Return, node) if each.value is not None)
