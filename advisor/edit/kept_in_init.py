"""What a method makes anew in each call, and is the same each time, is made once, in ``__init__``."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import code_at
from advisor.edit.names import fresh_name, last_part
from advisor.edit.scopes import assigned_once, parameter_names, scope_of, variables


def made_in_init(draft: Draft, line: int) -> str:
    """Have ``name = call(…)`` on `line` of a method be ``self.name`` from ``__init__`` on; why not, as a clause, or "".

    That the call gives the same each time is for the caller to know; it is given nothing that the method binds.
    """
    statement = code_at(draft, line)
    method = draft.function(statement) if statement is not None else None
    holder = draft.enclosing_class(statement) if statement is not None else None
    inits = [each for each in draft.nodes(cst.FunctionDef, holder) if each.name.value == "__init__"] if holder else []
    if (
        not isinstance(statement, cst.SimpleStatementLine)
        or method is None
        or len(inits) != 1
        or len(statement.body) != 1
    ):
        return "the class has no __init__ of its own"
    bases = {last_part(each.value) for cls in draft.nodes(cst.ClassDef) for each in cls.bases}
    if holder is not None and holder.name.value in bases:
        return "a class made of this one may have an __init__ of its own"
    (assign,), (init,) = statement.body, inits
    if not isinstance(assign, cst.Assign) or not isinstance(target := assign.targets[0].target, cst.Name):
        return "what is made there has no name"
    name, body = target.value, init.body
    if assigned_once(draft, name, method) is not assign.value or scope_of(draft, statement) is not method:
        return "its name is given something else, too"
    uses = [each for each in variables(draft, name, method) if each is not target]
    written = [each for each in written_in_place(draft, method) if isinstance(each, cst.Name) and each.value == name]
    if written or any(scope_of(draft, each) is not method for each in uses):
        return "it may be changed after it is made"
    mine, its = (next(iter(_first_parameter(each)), "") for each in (method, init))
    if not isinstance(body, cst.IndentedBlock) or draft.nodes(cst.Return, init) or not mine or mine != its:
        return "where __init__ ends cannot be told"
    taken = {each.attr.value for each in draft.nodes(cst.Attribute)}
    attribute = fresh_name(draft, name) if name in taken else name
    if not {each.value for each in draft.nodes(cst.Name, assign.value)}.isdisjoint(parameter_names(draft, init)):
        return "in __init__ its arguments would mean something else"
    draft.insert_after(body.body[-1], f"{mine}.{attribute} = {draft.code(assign.value)}")  # type: ignore[arg-type]
    draft.remove(statement, comments=False)
    for each in uses:
        draft.replace(each, f"{mine}.{attribute}")
    return ""


def _first_parameter(function: cst.FunctionDef) -> list[str]:
    return [each.name.value for each in function.params.params[:1]]
