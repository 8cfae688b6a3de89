"""Parametrized weights that are computed once for a whole forward: ``torch.nn.utils.parametrize.cached``."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name, full_name, last_part
from advisor.edit.regions import suspends
from advisor.harness.layout import Site

_TURNS = ("backward", "manual_backward", "step", "zero_grad", "load_state_dict")
_GOES_BACK = ("backward", "manual_backward", "grad")
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
    if len(found) > 1 and (together := _together(list(found.values()))) is not None:
        draft, first, last = together
        if _backwards_behind(draft, last) > 1:
            return "the losses behind them go back one by one, and all would through the same weights"
        draft.wrap(first, last, f"with {ensure_name(draft, CACHED)}()")
        return ""
    for draft, statement in found.values():
        draft.wrap(statement, statement, f"with {ensure_name(draft, CACHED)}()")
    return ""


def _backwards_behind(draft: Draft, statement: Statement) -> int:
    """How many backwards the rest of a block takes: the first one frees what it has gone through."""
    block = draft.siblings(statement)
    rest = block[next(number for number, each in enumerate(block) if each is statement) + 1 :]
    return sum(last_part(call.func) in _GOES_BACK for each in rest for call in draft.nodes(cst.Call, each))


def _together(found: Sequence[tuple[Draft, cst.SimpleStatementLine]]) -> tuple[Draft, Statement, Statement] | None:
    """The first and the last of statements of one block between which no weight changes and no graph is given back.

    What one of them has computed is there for the next only where one ``cached()`` is around them all.
    """
    draft = found[0][0]
    block = draft.siblings(found[0][1])
    places = sorted(number for number, each in enumerate(block) if any(each is one for _, one in found))
    if len(places) < len(found):
        return None
    between = block[places[0] : places[-1] + 1]
    own = {each.name.value for each in draft.nodes(cst.FunctionDef)}
    for each in between:
        forward = any(each is one for _, one in found)
        for call in draft.nodes(cst.Call, each):
            # What else is called in between may go back, and update the weights.
            other = not forward and not full_name(draft, call.func).startswith("torch.")
            if other or last_part(call.func) in _TURNS or (isinstance(call.func, cst.Name) and call.func.value in own):
                return None
    return None if any(map(suspends, between)) else (draft, between[0], between[-1])
