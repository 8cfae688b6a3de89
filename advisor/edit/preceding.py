"""What a name is given in front of where it is read: the order of the text, which :mod:`.dataflow` does not look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

import libcst as cst

from advisor.edit.draft import Draft, Statement
from advisor.edit.sums import elements


def bindings_before(draft: Draft, name: cst.Name) -> Iterator[Statement]:
    """The statements of the function that bind `name`, or may, in front of it; the nearest first.

    In its own block and those around it; a loop around it that binds it is one of them.
    """
    inner: cst.CSTNode = name
    for above in draft.ancestors(name):
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            place = next(index for index, each in enumerate(above.body) if each is inner)
            for each in reversed(above.body[:place]):
                if not isinstance(each, (cst.FunctionDef, cst.ClassDef)) and name.value in bound_in(draft, each):
                    yield cast(Statement, each)
        elif isinstance(above, cst.For) and inner is above.body:
            if name.value in {draft.code(each) for each in elements(above.target)}:
                yield above
        elif isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            return
        inner = above


def last_given(draft: Draft, name: cst.Name) -> cst.BaseExpression | None:
    """The value of the assignment that decides what a name is where it is read; None where no single one does."""
    statement = next(bindings_before(draft, name), None)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
    if not isinstance(small, cst.Assign) or not all(isinstance(each.target, cst.Name) for each in small.targets):
        return None
    return small.value if not _bound_by_loop(draft, name, {*draft.ancestors(small)}) else None


def is_untouched(draft: Draft, name: cst.Name) -> bool:
    """Whether a parameter is still what the function was given where it is read."""
    return next(bindings_before(draft, name), None) is None and not _bound_by_loop(draft, name, set())


def _bound_by_loop(draft: Draft, name: cst.Name, outside: Collection[cst.CSTNode]) -> bool:
    """Whether a name may be what a loop around it made it in the round before."""
    around = [each for each in draft.ancestors(name) if isinstance(each, (cst.For, cst.While)) and each not in outside]
    return any(name.value in bound_in(draft, each) for each in around)


def bound_within(draft: Draft, name: cst.Name, loop: cst.For | cst.While) -> bool:
    """Whether what a name is read as was given to it in the same round of the loop, whichever way the code took."""
    around = [*draft.ancestors(name)]
    around = around[: around.index(loop) + 1]
    return any(
        each in around or (draft.parent(each) in around and _binds(draft, each, name.value))
        for each in bindings_before(draft, name)
    )


def _binds(draft: Draft, statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement binds the name whatever happens; of a ``try``, that it went well."""
    if isinstance(statement, cst.If):
        other = statement.orelse.body if isinstance(statement.orelse, cst.Else) else statement.orelse
        return other is not None and all(_binds(draft, each, name) for each in (statement.body, other))
    if isinstance(statement, cst.IndentedBlock):
        return any(_binds(draft, each, name) for each in statement.body)
    return not isinstance(statement, (cst.For, cst.While)) and name in bound_in(draft, statement)


def bound_in(draft: Draft, statement: cst.CSTNode) -> set[str]:
    """The names that a statement gives a new value; ``x += 1`` and ``x[i] = 1`` change the one there is."""
    targets = [each.target for each in draft.nodes(cst.AssignTarget, statement)]
    targets += [each.target for each in draft.nodes(cst.AnnAssign, statement) if each.value is not None]
    return {each.value for target in targets for each in elements(target) if isinstance(each, cst.Name)}
