"""Of what chooses between two, ``4 if train else 8`` or ``args.size or 4``, the side that gave the value."""

from __future__ import annotations

import libcst as cst

from advisor.edit.changes import is_overridden
from advisor.edit.draft import Draft, Drafts
from advisor.edit.origins.naming import names_of
from advisor.edit.origins.option_origin import Origin
from advisor.edit.origins.origin import UNKNOWN, asks_for_a_side, origin_of
from advisor.edit.origins.settings import may_say


def side_of(drafts: Drafts, draft: Draft, value: cst.BaseExpression, recorded: object) -> cst.BaseExpression:
    """The side that gives the value, where only one does; any other expression itself."""
    if isinstance(value, cst.IfExp) and not asks_for_a_side(draft, value):
        sides = [value.body, value.orelse]
    elif isinstance(value, cst.BooleanOperation):
        sides = [value.left, value.right]
    else:
        return value
    origin, found = origin_of(drafts, draft, value, recorded), list[cst.BaseExpression]()
    if origin is not None:
        of = [origin_of(drafts, draft, each, recorded) for each in sides]
        found = [side for side, each in zip(sides, of, strict=True) if each is not None and _is(each, origin)]
    elif isinstance(value, cst.IfExp):
        said = [_may_say(drafts, draft, each, recorded) for each in sides]
        found = [side for side, says in zip(sides, said, strict=True) if says] if None not in said else []
    return side_of(drafts, draft, found[0], recorded) if len(found) == 1 else value


def _may_say(drafts: Drafts, draft: Draft, value: cst.BaseExpression, recorded: object) -> bool | None:
    """Whether an expression may be what the run saw, by what is written, or by a settings file; None where unknown."""
    origin = origin_of(drafts, draft, value, recorded)
    if origin is not None:
        return bool(origin.option) or origin.says(recorded)
    names = names_of(drafts, draft, value)
    if not names or recorded is UNKNOWN or is_overridden(drafts, draft, names[-1]):
        return None
    return may_say(drafts.settings(), names, recorded)


def _is(one: Origin, other: Origin) -> bool:
    return one.option == other.option and one.node is other.node
