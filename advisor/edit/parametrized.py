"""Parametrized weights that are computed once for a whole forward: ``torch.nn.utils.parametrize.cached``."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name
from advisor.edit.regions import suspends
from advisor.harness.layout import Site

CACHED = "torch.nn.utils.parametrize.cached"


def cache_weights(drafts: Drafts, forwards: Sequence[Site]) -> str:
    """Have each statement that calls a model run under ``parametrize.cached()``; why not, where that is not safe."""
    found: dict[cst.CSTNode, tuple[Draft, cst.SimpleStatementLine]] = {}
    for site in forwards:
        draft = drafts[site.file]
        call = call_at(draft, site)
        statement = draft.statement(call) if call is not None else None
        if not isinstance(statement, cst.SimpleStatementLine):
            return "the model is not called in a statement of its own"
        if suspends(statement):
            return "the statement yields, and what takes the values would run with the weights of before"
        found[statement] = draft, statement
    if not found:
        return "where the model is called is not known"
    for draft, statement in found.values():
        draft.wrap(statement, statement, f"with {ensure_name(draft, CACHED)}()")
    return ""
