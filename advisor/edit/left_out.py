"""Leaving out a call that stands by itself."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Drafts
from advisor.edit.locate import call_at
from advisor.harness.layout import Site

_ALONE = m.SimpleStatementLine([m.Expr(m.Call())])


def leave_out(drafts: Drafts, site: Site, names: tuple[str, ...]) -> str:
    """Remove the call of one of these names at `site`; "" when that was done, else why it was not."""
    draft = drafts[site.file]
    call = call_at(draft, site, names)
    statement = draft.statement(call) if call is not None else None
    if call is None or statement is None or not m.matches(statement, _ALONE):
        return "is part of another statement, or a library's"
    if any(isinstance(each, cst.ExceptHandler) for each in draft.ancestors(call)):
        return "is made after an error"
    draft.remove(statement)
    return ""
