"""Regions of statements that belong together: from a model's forward to the loss that is then differentiated."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Statement
from advisor.edit.locate import last_name
from advisor.edit.names import fresh_name

Region = tuple[Statement, Statement]
# What computes a loss, by the names that people give it.
LOSS = re.compile(r"loss|criterion|entropy|nll|mse|bce|kl_div", re.I)
_NEAR = 4  # statements from a forward on in which a loss of its output is looked for, where nothing is trained


def forward_regions(
    draft: Draft, forwards: Sequence[cst.Call], backwards: Sequence[cst.Call], trains: bool
) -> list[Region] | None:
    """First and last statement of each region to put a context around: forwards and the loss made of them.

    One region per ``backward`` that has forwards in front of it; where a forward's own function calls no
    ``backward``, from the forward to the end of its block if a loss is computed there, and the forward's
    statement alone when the script does not train. None when a statement holds both, or nothing safe is found.
    """
    regions: list[Region] = []
    remaining = [forward for forward in forwards if draft.statement(forward) is not None]
    if len(remaining) != len(forwards):
        return None
    for backward in backwards:
        region = _before_backward(draft, remaining, backward, backwards)
        if region == "inseparable":
            return None
        if isinstance(region, tuple):
            regions.append(region)
            remaining = [each for each in remaining if not _inside(draft, each, region)]
    for forward in remaining:
        if any(_inside(draft, forward, region) for region in regions):
            continue
        alone = _without_backward(draft, forward, trains)
        if alone is None:
            return None
        regions.append(alone)
    return regions or None


def _before_backward(
    draft: Draft, forwards: Sequence[cst.Call], backward: cst.Call, backwards: Sequence[cst.Call]
) -> Region | str | None:
    block = draft.statement(backward)
    while block is not None:
        siblings = draft.siblings(block)
        end = _index(siblings, block)
        earlier = [
            index
            for each in backwards
            if each is not backward and (index := holder(draft, siblings, each)) is not None and index < end
        ]
        starts = [index for each in forwards if (index := holder(draft, siblings, each)) is not None and index <= end]
        starts = [index for index in starts if index > max(earlier, default=-1)]
        if any(index == end for index in starts):
            return "inseparable" if draft.statement(backward) is block else None
        if starts:
            first = min(starts)
            return siblings[first], siblings[_last_of_loss(draft, siblings, first, end, backward)]
        block = _outer(draft, block)
    return None


def _last_of_loss(draft: Draft, siblings: Sequence[Statement], first: int, end: int, backward: cst.Call) -> int:
    """The last statement before `end` that binds a name which the differentiated expression uses."""
    used = {name.value for name in draft.nodes(cst.Name, backward)}
    for index in range(end - 1, first, -1):
        if used & bound_names(draft, siblings[index]):
            return index
    return first if used & bound_names(draft, siblings[first]) else end - 1


def bound_names(draft: Draft, statement: cst.CSTNode) -> set[str]:
    """Names that a statement assigns."""
    names: set[str] = set()
    for target in draft.nodes(cst.AssignTarget, statement):
        names |= {name.value for name in draft.nodes(cst.Name, target)}
    for update in draft.nodes(cst.AugAssign, statement):
        names |= {name.value for name in draft.nodes(cst.Name, update.target)}
    return names


def between(draft: Draft, first: Statement, last: Statement) -> list[Statement]:
    """The statements of a region."""
    siblings = draft.siblings(first)
    return siblings[_index(siblings, first) : _index(siblings, last) + 1]


def suspends(statement: cst.CSTNode) -> bool:
    """Whether a statement yields or awaits: a context around it would stay on in whatever runs meanwhile."""
    return bool(m.findall(statement, m.Yield() | m.Await()))


def _without_backward(draft: Draft, forward: cst.Call, trains: bool) -> Region | None:
    statement = draft.statement(forward)
    if statement is None:
        return None
    siblings = draft.siblings(statement)
    rest = siblings[_index(siblings, statement) :]
    if not trains:
        # Losses of what comes out are computed in float32 there; behind the region they would be in 16 bits.
        losses = [each for each in rest[1:_NEAR] if _calls_a_loss(draft, each)]
        return statement, losses[-1] if losses else statement
    losses = [each for each in rest if _makes_loss(draft, each)]
    return (statement, losses[-1]) if losses and draft.function(forward) is not None else None


def _calls_a_loss(draft: Draft, statement: Statement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return any(LOSS.search(last_name(draft, each)) for each in draft.nodes(cst.Call, statement))


def _makes_loss(draft: Draft, statement: Statement) -> bool:
    if any("loss" in name.lower() for name in bound_names(draft, statement)):
        return True
    returned = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(returned, cst.Return) and isinstance(returned.value, cst.Call)


def separate_backward(draft: Draft, backward: cst.Call, header: str) -> bool:
    """Have ``loss_fn(model(x), y).backward()`` become ``with …: loss = loss_fn(model(x), y)``, ``loss.backward()``.

    False, with nothing changed, for anything but such a statement whose expression is on one line.
    """
    statement = draft.statement(backward)
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(backward.func, cst.Attribute):
        return False
    small, expression = statement.body[0], backward.func.value
    code = draft.code(expression)
    if (
        not (isinstance(small, cst.Expr) and small.value is backward and isinstance(expression, cst.Call))
        or "\n" in code
    ):
        return False
    name = fresh_name(draft, "loss")
    draft.insert_before(statement, f"{header}:\n{draft.module.default_indent}{name} = {code}")
    draft.replace(expression, name)
    return True


def holder(draft: Draft, siblings: Sequence[Statement], node: cst.CSTNode) -> int | None:
    """Which of these statements holds the node, at any depth within the same function."""
    for above in (node, *draft.ancestors(node)):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)) and not any(above is each for each in siblings):
            return None
        for index, each in enumerate(siblings):
            if each is above:
                return index if not isinstance(each, (cst.FunctionDef, cst.ClassDef)) else None
    return None


def _inside(draft: Draft, node: cst.CSTNode, region: Region) -> bool:
    siblings = draft.siblings(region[0])
    index = holder(draft, siblings, node)
    return index is not None and _index(siblings, region[0]) <= index <= _index(siblings, region[1])


def _index(siblings: Sequence[Statement], statement: cst.CSTNode) -> int:
    return next(index for index, each in enumerate(siblings) if each is statement)


def _outer(draft: Draft, statement: Statement) -> Statement | None:
    """The statement whose block holds this one; None at the border of a function, class or module."""
    for above in draft.ancestors(statement):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Module)):
            return None
        if isinstance(above, cst.BaseCompoundStatement):
            return draft.statement(above)
    return None
